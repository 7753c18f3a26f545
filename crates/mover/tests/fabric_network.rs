//! Processes on hosts of their own, and what networks, crashes and stops do to them: every transfer
//! ends whole or with a typed error within its deadline, and whoever is left works on.

#[path = "fabric_support/cable.rs"]
mod cable;
#[path = "fabric_support/host.rs"]
mod host;

use std::io::BufRead;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cable::{Cable, Weather};
use crowfly_mover::fabric::{
    Access, Buffer, Fabric, FabricError, Imm, Options, Peer, Region, RegionDescriptor, Settings,
    SharedKey,
};
use host::{Host, on_a_host, plug_in, say};

/// Long enough for a busy machine and a bad cable.
const SOON: Duration = Duration::from_secs(60);
/// Silence after which a peer counts as gone.
const SILENCE: Duration = Duration::from_secs(3);
/// The same where packets are lost, and each that is lost again is sent later than the time before.
const PATIENT: Duration = Duration::from_secs(30);
const SERVED: usize = 64 << 20;

fn settings(shm: bool, silence: Duration, listen: &str) -> Settings {
    Settings {
        shm,
        silence,
        listen: listen.parse().expect("an address"),
        ..Settings::new(SharedKey::derive("a network of tests"))
    }
}

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64)
        .map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(seed) >> 32) as u8)
        .collect()
}

/// What the process of a host does when it is told to.
struct Player {
    fabric: Fabric,
    served: Region,
    peers: Vec<(Peer, RegionDescriptor)>,
}

impl Player {
    /// `reached` says how others of this host reach its memory: as they do best (``), where it is no
    /// memory file (`private`), or over a network (`sockets`), there also with more patience (`patient`).
    fn new(listen: &str, reached: &str) -> Result<Self, FabricError> {
        let shm = !matches!(reached, "sockets" | "patient");
        let silence = if reached == "patient" {
            PATIENT
        } else {
            SILENCE
        };
        let fabric = Fabric::new(settings(shm, silence, listen))?;
        let served = match reached {
            "private" => Buffer::private(SERVED)?,
            _ => Buffer::zeroed(SERVED, None)?,
        };
        let served = fabric.register(served, Access::READ_WRITE)?;
        Ok(Self {
            fabric,
            served,
            peers: Vec::new(),
        })
    }

    fn obey(&mut self, order: &str) -> Result<String, FabricError> {
        let words: Vec<&str> = order.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().expect("a number");
        match words[0] {
            "address" => Ok(self.fabric.address().to_string()),
            "accept" => {
                let peer = self.fabric.accept(SOON)?;
                let told = self.served.descriptor().to_string();
                peer.send(told.as_bytes(), Options::within(SOON)).wait()?;
                Ok("accepted".into())
            }
            "connect" => {
                let options = Options::within(Duration::from_millis(number(2)));
                let peer = self.fabric.connect(words[1], options)?;
                let told = peer.recv(Options::within(SOON)).wait()?;
                let told = String::from_utf8(told).expect("text").parse()?;
                self.peers.push((peer, told));
                Ok(format!("connected {}", self.peers.len() - 1))
            }
            // write PEER BYTES MILLISECONDS, compared by both ends; push: not compared.
            "write" | "push" => {
                let (peer, remote) = &self.peers[number(1) as usize];
                let len = number(2) as usize;
                let source = Buffer::copy_of(&pattern(len, number(2)))?;
                let source = self.fabric.register(source, Access::LOCAL)?;
                let options = Options::within(Duration::from_millis(number(3)));
                let to = remote.slice(0..len as u64)?;
                let began = Instant::now();
                say("started");
                let options = match words[0] {
                    "write" => options.verified(),
                    _ => options,
                };
                let written = peer.write(&source.whole(), &to, options).wait();
                let took = began.elapsed();
                // The memory is this process's again, unless a frame that was begun still waits for a
                // network that takes nothing: then it is kept until the connection ends.
                match source.deregister() {
                    Ok(back) => assert!(back.as_slice() == pattern(len, number(2))),
                    Err(error) => assert!(written.is_err() && error.code() == "region-in-use"),
                }
                match written {
                    Ok(done) => {
                        assert!(done.receipt.is_whole());
                        let share = |nic: &crowfly_mover::fabric::NicShare| {
                            format!("{}:{}", nic.nic, nic.bytes.0)
                        };
                        let nics: Vec<_> = done.nics.iter().map(share).collect();
                        let retries = done.receipt.retries;
                        Ok(format!("written retries {retries} by {}", nics.join(",")))
                    }
                    Err(error) => Ok(format!("failed {} {}", error.code(), took.as_millis())),
                }
            }
            // try PEER WHAT MILLISECONDS: anything that a peer is needed for.
            "try" => {
                let (peer, remote) = &self.peers[number(1) as usize];
                let allowed = Duration::from_millis(number(3));
                let options = Options::within(allowed);
                let buffer = Buffer::zeroed(SERVED, None)?;
                let region = self.fabric.register(buffer, Access::LOCAL)?;
                let (here, there) = (region.whole(), remote.whole());
                let began = Instant::now();
                let ended = match words[2] {
                    "write" => peer.write(&here, &there, options).wait().map(drop),
                    "verify" => peer
                        .write(&here, &there, options.verified())
                        .wait()
                        .map(drop),
                    "read" => peer.read(&here, &there, options).wait().map(drop),
                    "write-imm" => {
                        let told = peer.write_imm(&here, &there, Imm(3), options);
                        told.wait().map(drop)
                    }
                    "notify" => peer.notify(Imm(3), options).wait().map(drop),
                    "send" => peer.send(b"are you there", options).wait(),
                    "receive" => peer.recv(options).wait().map(drop),
                    "barrier" => {
                        let peers = [peer.clone()];
                        self.fabric.barrier(&peers, 1, allowed)
                    }
                    other => panic!("nobody knows how to try to {other}"),
                };
                let took = began.elapsed().as_millis();
                Ok(match ended {
                    Ok(()) => format!("ended {took}"),
                    Err(error) => format!("failed {} {took}", error.code()),
                })
            }
            "holds" => {
                let len = number(1) as usize;
                let mut bytes = vec![0; len];
                self.served.read_at(0, &mut bytes);
                Ok((bytes == pattern(len, number(1))).to_string())
            }
            "lost" => {
                let began = Instant::now();
                let peer = &self.peers[number(1) as usize].0;
                while peer.lost().is_none() && began.elapsed() < SOON {
                    std::thread::sleep(Duration::from_millis(10));
                }
                Ok(format!("lost {}", began.elapsed().as_millis()))
            }
            "rails" => {
                let rails = self.peers[number(1) as usize].0.rails();
                let rail = |rail: &crowfly_mover::fabric::RailReport| {
                    let up = if rail.down.is_none() { "up" } else { "down" };
                    format!("{}:{up}:{}", rail.nic, rail.returns)
                };
                Ok(rails.iter().map(rail).collect::<Vec<_>>().join(" "))
            }
            "link" => {
                let done = host::ip(&["link", "set", words[1], words[2]]);
                Ok(format!("{done:?}"))
            }
            other => panic!("nobody knows how to {other}"),
        }
    }
}

/// The process of a host; nothing in the test run itself.
#[test]
fn plays_a_host() {
    let Some((side, cables)) = on_a_host() else {
        return;
    };
    let (side, reached) = match side.split_once('-') {
        Some((side, reached)) => (side, Some(reached)),
        None => (side.as_str(), None),
    };
    if let Err(why) = plug_in(side, &cables) {
        return say(&why);
    }
    let listen = if cables.is_empty() {
        "127.0.0.1:0"
    } else {
        "0.0.0.0:7471"
    };
    let reached = match reached {
        Some(reached) => reached,
        None if cables.is_empty() => "",
        None => "sockets",
    };
    let mut player = Player::new(listen, reached).expect("a fabric");
    say("ready");
    for order in std::io::stdin().lock().lines().map_while(Result::ok) {
        match player.obey(&order) {
            Ok(answer) => say(&answer),
            Err(error) => say(&format!("error {}", error.code())),
        }
    }
}

/// Two hosts and the cables between them.
struct Network {
    west: Host,
    east: Host,
    cables: Vec<Cable>,
    folders: Vec<PathBuf>,
    _folder: tempfile::TempDir,
}

impl Network {
    /// East is connected to west, which serves memory. An error says why there can be no such
    /// network here.
    fn new(count: usize, reached: &str) -> Result<Self, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let folders: Vec<PathBuf> = (0..count)
            .map(|number| folder.path().join(number.to_string()))
            .collect();
        let cables = folders.iter().zip(1..).map(|(folder, seed)| {
            std::fs::create_dir(folder).expect("a folder");
            Cable::new(folder, seed)
        });
        let cables = cables.collect();
        let start = |side: &str| Host::start("plays_a_host", &format!("{side}{reached}"), &folders);
        let (west, east) = (start("west")?, start("east")?);
        let mut network = Self {
            west,
            east,
            cables,
            folders,
            _folder: folder,
        };
        network.west.order("accept");
        let connected = network.east.ask("connect 10.9.0.1:7471 20000", SOON);
        assert_eq!(connected, "connected 0");
        assert_eq!(network.west.answer(SOON), "accepted");
        Ok(network)
    }

    /// Starts a write from east to west.
    fn start(&mut self, bytes: usize, millis: u64) {
        self.east.order(&format!("write 0 {bytes} {millis}"));
        assert_eq!(self.east.answer(SOON), "started");
    }

    fn write(&mut self, bytes: usize, millis: u64) -> String {
        self.start(bytes, millis);
        self.east.answer(SOON)
    }
}

/// A network, or the end of the test where this machine lets it have none.
macro_rules! network {
    ($cables:expr) => {
        network!($cables, "")
    };
    ($cables:expr, $reached:expr) => {
        match Network::new($cables, $reached) {
            Ok(network) => network,
            Err(why) => {
                let foreseen = ["waived: ", "unshare: ", "the host did not come up: unshare"];
                assert!(
                    foreseen.iter().any(|why_not| why.starts_with(why_not)),
                    "{why}"
                );
                crowfly_waive::waived!("no network of its own for a test: {why}");
            }
        }
    };
}

/// The code of a failed transfer and after how many milliseconds it failed.
fn failed(answer: &str) -> (String, u64) {
    let words: Vec<&str> = answer.split(' ').collect();
    assert_eq!((words.len(), words[0]), (3, "failed"), "{answer}");
    (words[1].to_owned(), words[2].parse().expect("milliseconds"))
}

#[test]
fn given_lost_doubled_and_late_packets_then_transfers_are_whole_all_the_same() {
    let weathers = [
        (
            Weather {
                lost: 10,
                ..Weather::default()
            },
            8 << 20,
        ),
        (
            Weather {
                lost: 100,
                ..Weather::default()
            },
            1 << 20,
        ),
        (
            Weather {
                doubled: 100,
                late: 250,
                ..Weather::default()
            },
            8 << 20,
        ),
    ];
    let mut network = network!(1, "-patient");
    for (weather, bytes) in weathers {
        network.cables[0].weather(weather);
        let answer = network.write(bytes, 50_000);
        let expected = format!("written retries 0 by cable0:{bytes}");
        assert_eq!(answer, expected, "{weather:?}");
        assert_eq!(network.west.ask(&format!("holds {bytes}"), SOON), "true");
    }
    let treated = &network.cables[0].treated;
    for count in [&treated.lost, &treated.doubled, &treated.late] {
        assert!(count.load(Ordering::Relaxed) > 10, "{treated:?}");
    }
}

#[test]
fn given_a_black_hole_in_the_middle_then_the_transfer_ends_at_its_deadline_and_the_peer_later() {
    let mut network = network!(1);
    network.start(48 << 20, 1_000);
    network.cables[0].weather(Weather {
        black_hole: true,
        ..Weather::default()
    });
    let (code, after) = failed(&network.east.answer(SOON));
    assert_eq!(code, "deadline-exceeded");
    assert!((1_000..2_500).contains(&after), "{after} ms");
    let lost = network.east.ask("lost 0", SOON);
    let after: u64 = lost.replace("lost ", "").parse().expect("milliseconds");
    assert!(after < 2 * SILENCE.as_millis() as u64, "{after} ms");
    let answer = network.write(1000, 1_000);
    assert_eq!(failed(&answer).0, "peer-lost");
    // Half open: to west the connection still exists when east is gone and comes anew.
    network.cables[0].weather(Weather::default());
    network.west.order("accept");
    assert_eq!(
        network.east.ask("connect 10.9.0.1:7471 20000", SOON),
        "connected 1"
    );
    assert_eq!(network.west.answer(SOON), "accepted");
}

#[test]
fn given_a_process_that_is_killed_mid_transfer_then_its_peer_knows_and_the_others_work_on() {
    let mut network = network!(1);
    // A slow cable, so that there is a middle.
    network.cables[0].weather(Weather {
        lost: 20,
        ..Weather::default()
    });
    network.start(48 << 20, 30_000);
    std::thread::sleep(Duration::from_millis(100));
    network.west.signal("KILL");
    let (code, after) = failed(&network.east.answer(SOON));
    assert_eq!(code, "peer-lost");
    assert!(after < 10_000, "{after} ms");
    // Its successor on the same host.
    network.west = Host::start("plays_a_host", "west", &network.folders).expect("a host");
    network.cables[0].weather(Weather::default());
    network.west.order("accept");
    assert_eq!(
        network.east.ask("connect 10.9.0.1:7471 20000", SOON),
        "connected 1"
    );
    assert_eq!(network.west.answer(SOON), "accepted");
    network.east.order("write 1 1000000 20000");
    assert_eq!(network.east.answer(SOON), "started");
    assert!(network.east.answer(SOON).starts_with("written"));
}

#[test]
fn given_a_connection_that_is_half_open_then_it_ends_within_the_silence_that_is_allowed() {
    let mut network = network!(1);
    // West dies unseen: no packet of its end comes through.
    network.cables[0].weather(Weather {
        black_hole: true,
        ..Weather::default()
    });
    network.west.signal("KILL");
    let answer = network.write(1 << 20, 30_000);
    let (code, after) = failed(&answer);
    assert_eq!(code, "peer-lost");
    assert!(after < 3 * SILENCE.as_millis() as u64, "{after} ms");
}

#[test]
fn given_a_process_that_stops_for_a_while_then_the_transfer_waits_and_for_too_long_then_it_ends() {
    let mut network = network!(1);
    network.start(48 << 20, 30_000);
    network.west.signal("STOP");
    std::thread::sleep(SILENCE / 3);
    network.west.signal("CONT");
    assert!(network.east.answer(SOON).starts_with("written"));
    network.start(48 << 20, 30_000);
    network.west.signal("STOP");
    let (code, after) = failed(&network.east.answer(SOON));
    assert_eq!(code, "peer-lost");
    assert!(after < 3 * SILENCE.as_millis() as u64, "{after} ms");
    network.west.signal("CONT");
}

#[test]
fn given_two_cables_when_one_is_cut_mid_transfer_then_the_other_carries_the_rest_and_it_comes_back()
{
    let mut network = network!(2);
    assert_eq!(network.east.ask("rails 0", SOON), "cable0:up:0 cable1:up:0");
    network.start(48 << 20, 50_000);
    network.cables[1].weather(Weather {
        black_hole: true,
        ..Weather::default()
    });
    let answer = network.east.answer(SOON);
    let (retries, nics) = answer
        .strip_prefix("written retries ")
        .and_then(|rest| rest.split_once(" by "))
        .unwrap_or_else(|| panic!("{answer}"));
    assert!(retries.parse::<u64>().expect("a number") > 0, "{answer}");
    let bytes = nics.split(',').map(|nic| {
        let (_, bytes) = nic.split_once(':').expect("a share");
        bytes.parse::<usize>().expect("bytes")
    });
    assert_eq!(bytes.sum::<usize>(), 48 << 20, "{answer}");
    assert_eq!(
        network.west.ask(&format!("holds {}", 48 << 20), SOON),
        "true"
    );
    assert!(network.east.ask("rails 0", SOON).contains("cable1:down"));
    network.cables[1].weather(Weather::default());
    let began = Instant::now();
    while network.east.ask("rails 0", SOON) != "cable0:up:0 cable1:up:1" {
        assert!(began.elapsed() < SOON, "the rail did not come back");
        std::thread::sleep(Duration::from_millis(200));
    }
    let answer = network.write(32 << 20, 50_000);
    assert!(
        answer.contains("cable0:") && answer.contains("cable1:"),
        "{answer}"
    );
}

#[test]
fn given_two_cables_when_the_one_that_they_talk_by_is_cut_then_the_transfer_ends_well_by_the_other()
{
    let mut network = network!(2);
    network.east.order(&format!("push 0 {} 50000", 48 << 20));
    assert_eq!(network.east.answer(SOON), "started");
    network.cables[0].weather(Weather {
        black_hole: true,
        ..Weather::default()
    });
    let answer = network.east.answer(SOON);
    assert!(answer.starts_with("written retries "), "{answer}");
    assert!(!answer.contains("retries 0 "), "{answer}");
    assert_eq!(
        network.west.ask(&format!("holds {}", 48 << 20), SOON),
        "true"
    );
    // They cannot talk any more: once nothing moves, each counts as lost to the other.
    let lost = network.east.ask("lost 0", SOON);
    let after: u64 = lost.replace("lost ", "").parse().expect("milliseconds");
    assert!(after < 3 * SILENCE.as_millis() as u64, "{after} ms");
}

#[test]
fn given_a_link_that_is_taken_down_then_the_transfer_ends_in_time_with_a_typed_error() {
    let mut network = network!(1);
    network.start(48 << 20, 2_000);
    assert_eq!(network.west.ask("link cable0 down", SOON), "Ok(())");
    let (code, after) = failed(&network.east.answer(SOON));
    assert!(
        ["deadline-exceeded", "peer-lost"].contains(&code.as_str()),
        "{code}"
    );
    assert!(after < 5_000, "{after} ms");
}

#[test]
fn given_a_process_that_stops_then_whatever_is_asked_of_it_ends_by_its_own_deadline() {
    /// Shorter than the silence after which the peer counts as gone.
    const ALLOWED: u64 = 2_000;
    let tried = |reached: &str, what: &str| {
        let start = |side: &str| {
            let side = format!("{side}{reached}");
            Host::start("plays_a_host", &side, &[]).expect("a process")
        };
        let (mut west, mut east) = (start("west"), start("east"));
        let address = west.ask("address", SOON);
        west.order("accept");
        let connected = east.ask(&format!("connect {address} 20000"), SOON);
        assert_eq!(connected, "connected 0");
        assert_eq!(west.answer(SOON), "accepted");
        west.stop();
        let answer = east.ask(&format!("try 0 {what} {ALLOWED}"), SOON);
        west.signal("CONT");
        let (code, after) = failed(&answer);
        assert_eq!(code, "deadline-exceeded", "west{reached}: {what}");
        // The code says what ended it; this, that it did not take as long as nobody would wait for.
        let late = 10 * ALLOWED;
        assert!(after < late, "west{reached}: {what} after {after} ms");
    };
    for reached in ["", "-private", "-sockets"] {
        std::thread::scope(|scope| {
            for what in [
                "write",
                "verify",
                "read",
                "write-imm",
                "notify",
                "send",
                "receive",
                "barrier",
            ] {
                scope.spawn(move || tried(reached, what));
            }
        });
    }
}

#[test]
fn given_processes_that_share_memory_when_its_owner_is_killed_then_the_other_lives_on() {
    let connect = |owner: &mut Host, other: &mut Host| {
        let address = owner.ask("address", SOON);
        owner.order("accept");
        let connected = other.ask(&format!("connect {address} 20000"), SOON);
        assert!(connected.starts_with("connected"), "{connected}");
        assert_eq!(owner.answer(SOON), "accepted");
    };
    // What can be mapped is, and other memory the kernel copies between the two.
    for (reached, by) in [("", "shm"), ("-private", "cma")] {
        let start = |side: &str| {
            let side = format!("{side}{reached}");
            Host::start("plays_a_host", &side, &[]).expect("a process")
        };
        let (mut owner, mut other) = (start("west"), start("east"));
        connect(&mut owner, &mut other);
        other.order(&format!("write 0 {} 30000", SERVED));
        assert_eq!(other.answer(SOON), "started");
        owner.signal("KILL");
        let (code, after) = failed(&other.answer(SOON));
        assert_eq!(code, "peer-lost", "{by}");
        assert!(after < 10_000, "{by}: {after} ms");
        let mut successor = start("west");
        connect(&mut successor, &mut other);
        other.order("write 1 1000000 20000");
        assert_eq!(other.answer(SOON), "started");
        let written = other.answer(SOON);
        if by == "cma" && written == "written retries 0 by any:1000000" {
            crowfly_waive::waived!("process_vm_readv is forbidden here");
        }
        assert_eq!(written, format!("written retries 0 by {by}:1000000"));
    }
}
