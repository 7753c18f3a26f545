//! A cable between two hosts, played by this process: packets come from each host as datagrams, and
//! a seed decides which are lost, doubled or late. Needs no kernel module beyond TUN.
#![allow(dead_code, reason = "each file of tests uses a part of it")]

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// What a cable does to packets; per thousand.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    pub lost: u64,
    pub doubled: u64,
    /// Overtaken by up to three packets that come after them.
    pub late: u64,
    /// Nothing gets through, and nobody is told.
    pub black_hole: bool,
}

/// Packets that were treated so.
#[derive(Debug, Default)]
pub struct Treated {
    pub passed: AtomicU64,
    pub lost: AtomicU64,
    pub doubled: AtomicU64,
    pub late: AtomicU64,
}

/// A cable whose ends are the sockets `west` and `east` of a folder.
pub struct Cable {
    weather: Arc<Mutex<Weather>>,
    pub treated: Arc<Treated>,
}

/// Large enough for any packet of the hosts' interfaces.
const MAX_PACKET: usize = 65_536;
/// A late packet is let go after this time when nothing comes to overtake it.
const LATEST: Duration = Duration::from_millis(5);

impl Cable {
    /// Where the host at one end sends to, and where it receives.
    pub fn ends(folder: &Path, side: &str) -> (PathBuf, PathBuf) {
        (
            folder.join(format!("to-{side}")),
            folder.join(format!("from-{side}")),
        )
    }

    pub fn new(folder: &Path, seed: u64) -> Self {
        let cable = Self {
            weather: Arc::default(),
            treated: Arc::default(),
        };
        for (from, to, seed) in [("west", "east", seed), ("east", "west", seed + 1)] {
            let socket = UnixDatagram::bind(Self::ends(folder, from).1).expect("bound");
            socket.set_read_timeout(Some(LATEST)).expect("set");
            let (target, dice) = (Self::ends(folder, to).0, seed);
            let (weather, treated) = (Arc::clone(&cable.weather), Arc::clone(&cable.treated));
            thread::spawn(move || carry(&socket, &target, &weather, &treated, dice));
        }
        cable
    }

    pub fn weather(&self, weather: Weather) {
        *self.weather.lock().expect("no panic") = weather;
    }
}

fn carry(
    socket: &UnixDatagram,
    target: &Path,
    weather: &Mutex<Weather>,
    treated: &Treated,
    mut dice: u64,
) {
    let mut roll = move || {
        dice = dice
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (dice >> 33) % 1000
    };
    let mut packet = vec![0; MAX_PACKET];
    let mut held: Vec<Vec<u8>> = Vec::new();
    // A host that is gone takes no packets.
    let send = |packet: &[u8]| drop(socket.send_to(packet, target));
    loop {
        let got = socket.recv(&mut packet);
        let now = *weather.lock().expect("no panic");
        let Ok(len) = got else {
            held.drain(..).for_each(|packet| send(&packet));
            continue;
        };
        let packet = &packet[..len];
        if now.black_hole || roll() < now.lost {
            treated.lost.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        if roll() < now.late && held.len() < 3 {
            treated.late.fetch_add(1, Ordering::Relaxed);
            held.push(packet.to_vec());
            continue;
        }
        treated.passed.fetch_add(1, Ordering::Relaxed);
        send(packet);
        if roll() < now.doubled {
            treated.doubled.fetch_add(1, Ordering::Relaxed);
            send(packet);
        }
        if held.len() == 3 || (!held.is_empty() && roll() < 300) {
            held.drain(..).for_each(|packet| send(&packet));
        }
    }
}
