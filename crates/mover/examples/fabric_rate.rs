//! How fast two processes on this host hand memory to each other, for `bench/net`.
//!
//! ```text
//! fabric_rate PATH OP SIZE SECONDS     # shm|tcp write|read BYTES S: one JSON line
//! fabric_rate PATH latency SIZE COUNT  # shm|tcp BYTES ROUND-TRIPS: one JSON line
//! ```
//!
//! Latency is that of a write from its start until the other process sees its last byte, half of a
//! round trip. By shared memory both look at their memory all the time; by TCP the writes carry a value
//! that the other process waits for.
//!
//! Transfers of SIZE bytes go round a region of four times the size for SECONDS, as many at a time as have
//! a mebibyte together: two at least, 32 at most. `CROWFLY_RATE_PARTS` sets another number of parts,
//! `CROWFLY_RATE_AHEAD` how many are under way, `CROWFLY_RATE_SERVER` the words before the other process's
//! command, `CROWFLY_RATE_LISTEN` where that one listens.

use std::collections::VecDeque;
use std::error::Error;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crowfly_mover::fabric::rendezvous::{Folder, announce, meet};
use crowfly_mover::fabric::{
    Access, Buffer, Fabric, Imm, ImmCounter, LocalSlice, Options, Peer, Region, RegionDescriptor,
    RemoteSlice, Settings, SharedKey, Transfer,
};
use crowfly_route::receipt::Path;

const TIME: Duration = Duration::from_secs(120);
/// Transfers under way at one time, at least and at most.
const AHEAD: std::ops::RangeInclusive<usize> = 2..=32;
/// Bytes under way, within those bounds.
const WINDOW: usize = 1 << 20;
/// Transfers between two looks at the clock.
const LOOK: usize = 16;
/// Parts of the regions that transfers take turns in when nobody says.
const PARTS: usize = 4;

fn number(name: &str) -> Option<usize> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

fn parts() -> usize {
    number("CROWFLY_RATE_PARTS").unwrap_or(PARTS).max(1)
}

fn ahead(size: usize) -> usize {
    let fitting = WINDOW / size.max(1);
    let usual = fitting.clamp(*AHEAD.start(), *AHEAD.end());
    number("CROWFLY_RATE_AHEAD").unwrap_or(usual).max(1)
}

/// After how many transfers the clock is looked at: to look takes as long as to move a small one.
const fn look(size: usize) -> usize {
    if size < WINDOW { LOOK } else { 1 }
}

fn settings(path: &str, key: &str) -> Settings {
    let usual = Settings::new(SharedKey::derive(key));
    Settings {
        shm: path == "shm",
        streams: number("CROWFLY_RATE_STREAMS").unwrap_or(usual.streams),
        threads: number("CROWFLY_RATE_THREADS").or(usual.threads),
        ..usual
    }
}

fn buffer(size: usize) -> Result<Buffer, Box<dyn Error>> {
    let mut buffer = Buffer::zeroed(size * parts(), None)?;
    if let Some(bytes) = buffer.as_mut_slice() {
        // Every page is there before the clock starts.
        bytes.chunks_mut(4096).for_each(|page| page[0] = 1);
    }
    Ok(buffer)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", folder, path, size] => serve(&Folder::at(folder), path, size.parse()?),
        [path @ ("shm" | "tcp"), "latency", size, count] => {
            latency(path, size.parse()?, count.parse()?)
        }
        [
            path @ ("shm" | "tcp"),
            op @ ("write" | "read"),
            size,
            seconds,
        ] => measure(path, op == "write", size.parse()?, seconds.parse()?),
        _ => Err("say PATH OP SIZE SECONDS, or PATH latency SIZE COUNT".into()),
    }
}

fn serve(folder: &Folder, path: &str, size: usize) -> Result<(), Box<dyn Error>> {
    let mut settings = settings(path, &std::env::var("CROWFLY_RATE_KEY")?);
    if let Ok(listen) = std::env::var("CROWFLY_RATE_LISTEN") {
        settings.listen = listen.parse()?;
    }
    let fabric = Fabric::new(settings)?;
    let region = fabric.register(buffer(size)?, Access::READ_WRITE)?;
    announce(&fabric, folder, "server")?;
    let peer = fabric.accept(TIME)?;
    let options = Options::within(TIME);
    peer.send(&region.descriptor().to_bytes()?, options)
        .wait()?;
    let told = peer.recv(options).wait()?;
    if let Some((count, remote)) = told.split_first_chunk() {
        let remote = RegionDescriptor::from_bytes(remote)?;
        let values = (path == "tcp").then(|| fabric.counter(BALL));
        let mut rally = Rally::new(&peer, &region, &remote, size, values)?;
        for round in 0..u64::from_le_bytes(*count) {
            rally.await_ball(round)?;
            rally.hit(round)?;
        }
        rally.land()?;
        peer.send(b"done", options).wait()?;
        peer.recv(options).wait()?;
    }
    Ok(())
}

/// Two processes that write to each other in turns.
struct Rally<'a> {
    peer: &'a Peer,
    region: &'a Region,
    /// The second part of the region, which is the source.
    here: LocalSlice,
    there: RemoteSlice,
    size: usize,
    /// Where the other's writes are counted, if they carry a value.
    values: Option<ImmCounter>,
    flying: Option<Transfer>,
}

/// The value of those.
const BALL: Imm = Imm(1);

impl<'a> Rally<'a> {
    fn new(
        peer: &'a Peer,
        region: &'a Region,
        remote: &RegionDescriptor,
        size: usize,
        values: Option<ImmCounter>,
    ) -> Result<Self, Box<dyn Error>> {
        Ok(Self {
            peer,
            region,
            here: region.slice(size..2 * size)?,
            there: remote.slice(0..size as u64)?,
            size,
            values,
            flying: None,
        })
    }

    /// The last byte of a round, never what was there before.
    const fn mark(round: u64) -> u8 {
        (round % 200) as u8 + 2
    }

    fn await_ball(&self, round: u64) -> Result<(), Box<dyn Error>> {
        if let Some(values) = &self.values {
            values.wait(round + 1, TIME)?;
        }
        let mut last = [0];
        while last != [Self::mark(round)] {
            std::hint::spin_loop();
            self.region.read_at(self.size - 1, &mut last);
        }
        Ok(())
    }

    fn hit(&mut self, round: u64) -> Result<(), Box<dyn Error>> {
        self.region
            .write_at(2 * self.size - 1, &[Self::mark(round)]);
        let options = Options::within(TIME);
        match self.values {
            None => {
                let hit = self.peer.write(&self.here, &self.there, options);
                hit.wait()?;
            }
            Some(_) => {
                // What was hit before has landed, or nothing would have come back.
                self.land()?;
                let hit = (self.peer).write_imm(&self.here, &self.there, BALL, options);
                self.flying = Some(hit);
            }
        }
        Ok(())
    }

    fn land(&mut self) -> Result<(), Box<dyn Error>> {
        let landed = self.flying.take().map(Transfer::wait);
        Ok(landed.transpose().map(drop)?)
    }
}

fn latency(path: &str, size: usize, count: u64) -> Result<(), Box<dyn Error>> {
    let mut meeting = Meeting::start(path, size)?;
    let (fabric, peer) = (&meeting.fabric, &meeting.peer);
    let options = Options::within(TIME);
    let remote = RegionDescriptor::from_bytes(&peer.recv(options).wait()?)?;
    let region = fabric.register(buffer(size)?, Access::READ_WRITE)?;
    let mut told = count.to_le_bytes().to_vec();
    told.extend(region.descriptor().to_bytes()?);
    peer.send(&told, options).wait()?;
    let values = (path == "tcp").then(|| fabric.counter(BALL));
    let mut rally = Rally::new(peer, &region, &remote, size, values)?;
    let mut began = Instant::now();
    for round in 0..count {
        if round == count / 10 {
            // The first ones also ask for the memory, and wake what sleeps.
            began = Instant::now();
        }
        rally.hit(round)?;
        rally.await_ball(round)?;
    }
    rally.land()?;
    let took = began.elapsed().as_secs_f64();
    peer.recv(options).wait()?;
    peer.send(b"done", options).wait()?;
    meeting.end()?;
    let each = took * 1e6 / (count - count / 10) as f64 / 2.0;
    println!("{{\"us_one_way\": {each:.3}}}");
    Ok(())
}

/// This process and the other one, which it started.
struct Meeting {
    fabric: Fabric,
    peer: Peer,
    child: Child,
    folder: PathBuf,
}

impl Meeting {
    fn end(&mut self) -> Result<(), Box<dyn Error>> {
        self.child.wait()?;
        std::fs::remove_dir_all(&self.folder)?;
        Ok(())
    }

    fn start(path: &str, size: usize) -> Result<Self, Box<dyn Error>> {
        let key = SharedKey::generate()?.to_hex();
        let folder = std::env::temp_dir().join(format!("crowfly-rate-{}", &key[..12]));
        let before = std::env::var("CROWFLY_RATE_SERVER").unwrap_or_default();
        let program = std::env::current_exe()?.display().to_string();
        let mut words = before.split_whitespace().chain([program.as_str()]);
        let first = words.next().ok_or("no program")?;
        let child = Command::new(first)
            .args(words)
            .args([
                "serve",
                &folder.display().to_string(),
                path,
                &size.to_string(),
            ])
            .env("CROWFLY_RATE_KEY", &key)
            .stdin(Stdio::null())
            .spawn()?;
        let fabric = Fabric::new(settings(path, &key))?;
        let peer = meet(&fabric, &Folder::at(&folder), "server", TIME)?;
        Ok(Self {
            fabric,
            peer,
            child,
            folder,
        })
    }
}

fn measure(path: &str, write: bool, size: usize, seconds: f64) -> Result<(), Box<dyn Error>> {
    let mut meeting = Meeting::start(path, size)?;
    let (fabric, peer) = (&meeting.fabric, &meeting.peer);
    let options = Options::within(TIME);
    let remote = RegionDescriptor::from_bytes(&peer.recv(options).wait()?)?;
    let region = fabric.register(buffer(size)?, Access::LOCAL)?;
    let mut cpu = 0.0;
    let mut moved = 0u64;
    let asked = match path {
        "shm" => Path::Shm,
        _ => Path::Tcp,
    };
    let mut settle = |transfer: Transfer| -> Result<(), Box<dyn Error>> {
        let delivery = transfer.wait()?;
        let mut paths = delivery.paths();
        assert!(paths.all(|(used, _)| used == asked), "a detour");
        cpu += delivery.cpu().total();
        moved += delivery.bytes().0;
        Ok(())
    };
    let part = |at: usize| -> Result<_, Box<dyn Error>> {
        let start = at * size;
        let there = remote.slice(start as u64..(start + size) as u64)?;
        Ok((region.slice(start..start + size)?, there))
    };
    let parts: Vec<_> = (0..parts()).map(part).collect::<Result<_, _>>()?;
    let ahead = ahead(size);
    let began = Instant::now();
    let mut running = VecDeque::new();
    let mut turn = 0usize;
    while !turn.is_multiple_of(look(size)) || began.elapsed().as_secs_f64() < seconds {
        let (here, there) = &parts[turn % parts.len()];
        turn += 1;
        running.push_back(if write {
            peer.write(here, there, options)
        } else {
            peer.read(here, there, options)
        });
        if running.len() >= ahead
            && let Some(transfer) = running.pop_front()
        {
            settle(transfer)?;
        }
    }
    for transfer in running {
        settle(transfer)?;
    }
    let took = began.elapsed().as_secs_f64();
    peer.send(b"done", options).wait()?;
    meeting.end()?;
    println!(
        "{{\"bytes\": {moved}, \"seconds\": {took:.4}, \"gb_per_s\": {:.3}, \"us_each\": {:.2}, \"cpu_here\": {cpu:.4}}}",
        moved as f64 / took / 1e9,
        took * 1e6 / turn as f64,
    );
    Ok(())
}
