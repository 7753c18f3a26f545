//! Two processes of a fabric that reach each other by RDMA ports, as the rig's tests use them. Several
//! devices are named with commas in between.
//!
//! ```text
//! rail serve  DEVICE ADDRESS:PORT
//! rail verify DEVICE ADDRESS:PORT BYTES     content, receipts and values are right
//! rail gone   DEVICE ADDRESS:PORT           a region that the peer took back is refused
//! rail stall  DEVICE ADDRESS:PORT SECONDS   writes go on until one fails, in time and with a code
//! rail rails  DEVICES ADDRESS:PORT SECONDS  writes share both rails, go on by one when the other is
//!                                           cut, and share them again once it is back
//! rail slow   DEVICE ADDRESS:PORT SECONDS   values are sent until a peer that takes none is too slow for one, and
//!                                           again once it goes on
//! rail flood  DEVICE ADDRESS:PORT SECONDS BYTES values|bytes
//!                                           as many writes as are kept, to a peer that takes none for a while: all of
//!                                           them end in time, and the accounts of both ends agree
//! rail beyond DEVICE ADDRESS:PORT           a descriptor that says too much reaches nothing, and the two go on
//! rail stale  DEVICE ADDRESS:PORT           what was given away by a peer that was started anew since is refused
//! rail hostile DEVICE ADDRESS:PORT          who tells wrong things of its half of a link is let down, and nobody else
//! ```
//!
//! `RAIL_SILENCE` is how many seconds a peer may be silent, 5 unless it is set.

use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crowfly_machine::verbs::{Patience, Verbs};
use crowfly_mover::fabric::provider::Provider;
use crowfly_mover::fabric::verbs::{VerbsNic, VerbsSettings};
use crowfly_mover::fabric::{
    Access, Buffer, Delivery, Fabric, Imm, Options, Peer, Region, RegionDescriptor, Settings,
    SharedKey,
};
use crowfly_route::obstacle::{Code, Obstacle};
use crowfly_route::receipt::{Path, Receipt};

mod flood;
mod foul;

/// Why a run failed, in words.
type Failure = Box<dyn std::error::Error>;

/// Bytes of the served region.
const SERVED: usize = 4 << 20;
/// How long what must work may take.
const PATIENT: Options = Options::within(Duration::from_secs(60));
/// The value that tells the server that bytes have come.
const WRITTEN: Imm = Imm(7);
/// The value of writes that nobody waits for one by one.
const FLOODED: Imm = Imm(8);

fn fabric(device: &str, listen: &str) -> Result<Fabric, Failure> {
    fabric_by(device, listen, |nic| nic)
}

/// A fabric whose NICs may be something else than they say.
fn fabric_by(
    device: &str,
    listen: &str,
    made: impl Fn(Arc<dyn Provider>) -> Arc<dyn Provider>,
) -> Result<Fabric, Failure> {
    let verbs = Verbs::load()?;
    let rdma = VerbsSettings {
        patience: Patience {
            // 67 ms: a lost packet costs little on a cable this short.
            timeout: 14,
            ..Patience::default()
        },
        ..VerbsSettings::default()
    };
    let mut providers: Vec<Arc<dyn Provider>> = Vec::new();
    for device in device.split(',') {
        let context = verbs.open(device)?;
        let nic = VerbsNic::open(&context, 1, rdma.clone());
        providers.push(made(Arc::new(nic.map_err(|obstacle| obstacle.summary)?)));
    }
    let settings = Settings {
        listen: listen.parse()?,
        nics: device.parse()?,
        shm: false,
        providers,
        silence: match std::env::var("RAIL_SILENCE") {
            Ok(seconds) => Duration::from_secs(seconds.parse()?),
            Err(_) => Duration::from_secs(5),
        },
        ..Settings::new(SharedKey::derive("two hosts of the rig"))
    };
    Ok(Fabric::new(settings)?)
}

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let byte = |at: usize| {
        let x = (at as u64 ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (x >> 56) as u8
    };
    (0..len).map(byte).collect()
}

/// Serves whoever comes, all of them the same region.
fn serve(device: &str, address: &str) -> Result<(), Failure> {
    let fabric = fabric(device, address)?;
    let region = fabric.register(Buffer::zeroed(SERVED, None)?, Access::READ_WRITE)?;
    let region = Mutex::new(Some(region));
    std::thread::scope(|scope| {
        while let Ok(peer) = fabric.accept(Duration::from_secs(60)) {
            let (fabric, region) = (&fabric, &region);
            scope.spawn(move || {
                if let Err(failure) = serve_one(fabric, &peer, region) {
                    eprintln!("rail: {}: {failure}", peer.address());
                }
            });
        }
    });
    Ok(())
}

fn serve_one(fabric: &Fabric, peer: &Peer, region: &Mutex<Option<Region>>) -> Result<(), Failure> {
    let written = fabric.counter(WRITTEN);
    while let Ok(message) = peer.recv(Options::within(Duration::from_secs(300))).wait() {
        let text = String::from_utf8(message)?;
        let mut region = region
            .lock()
            .map_err(|_| "another peer's thread panicked")?;
        let answer = match (text.split(' ').collect::<Vec<_>>().as_slice(), &*region) {
            (["describe"], Some(region)) => region.descriptor().to_string(),
            (["check", len, seed], Some(region)) => {
                written.wait(1, Duration::from_secs(60))?;
                let mut bytes = vec![0; len.parse()?];
                region.read_at(0, &mut bytes);
                (bytes == pattern(bytes.len(), seed.parse()?)).to_string()
            }
            (["counted"], _) => fabric.counter(FLOODED).get().to_string(),
            (["forget"], _) => {
                *region = None;
                "forgotten".into()
            }
            _ => format!("unknown request {text}"),
        };
        drop(region);
        peer.send(answer.as_bytes(), PATIENT).wait()?;
    }
    Ok(())
}

fn ask(peer: &Peer, what: &str) -> Result<String, Failure> {
    peer.send(what.as_bytes(), PATIENT).wait()?;
    Ok(String::from_utf8(peer.recv(PATIENT).wait()?)?)
}

/// All bytes went by RDMA, and the receipt says by which port.
fn by_rdma(delivery: &Delivery, nic: &str, bytes: usize) -> Result<(), Failure> {
    let receipt = &delivery.receipt;
    let shares: Vec<_> = receipt.shares.iter().map(|s| (s.path, s.bytes.0)).collect();
    let nics: Vec<_> = delivery
        .nics
        .iter()
        .map(|n| (n.nic.as_str(), n.bytes.0))
        .collect();
    let whole = receipt.is_whole() && shares == [(Path::Verbs, bytes as u64)];
    if whole && nics == [(nic, bytes as u64)] {
        return Ok(());
    }
    Err(format!("the receipt says {shares:?} by {nics:?}").into())
}

struct East {
    fabric: Fabric,
    peer: Peer,
    remote: RegionDescriptor,
    nic: String,
}

impl East {
    fn new(device: &str, address: &str) -> Result<Self, Failure> {
        let fabric = fabric(device, "127.0.0.1:0")?;
        let peer = fabric.connect(address, PATIENT)?;
        let remote = ask(&peer, "describe")?.parse()?;
        Ok(Self {
            fabric,
            peer,
            remote,
            nic: format!("{device}:1"),
        })
    }

    fn source(&self, len: usize, seed: u64) -> Result<Region, Failure> {
        Self::pattern(&self.fabric, len, seed)
    }

    fn pattern(fabric: &Fabric, len: usize, seed: u64) -> Result<Region, Failure> {
        let buffer = Buffer::copy_of(&pattern(len, seed))?;
        Ok(fabric.register(buffer, Access::LOCAL)?)
    }

    fn verify(&self, len: usize) -> Result<(), Failure> {
        let started = Instant::now();
        let to = self.remote.slice(0..len as u64)?;
        let source = self.source(len, 1)?;
        let written = self
            .peer
            .write_imm(&source.whole(), &to, WRITTEN, PATIENT)
            .wait()?;
        by_rdma(&written, &self.nic, len)?;
        let answer = ask(&self.peer, &format!("check {len} 1"))?;
        if answer != "true" {
            return Err(format!("what was written is wrong: {answer}").into());
        }
        let target = self.source(len, 2)?;
        let read = self.peer.read(&target.whole(), &to, PATIENT).wait()?;
        by_rdma(&read, &self.nic, len)?;
        let mut bytes = vec![0; len];
        target.read_at(0, &mut bytes);
        if bytes != pattern(len, 1) {
            return Err("what was read back is wrong".into());
        }
        let receipt = &written.receipt;
        println!(
            "{len} bytes written and read back in {:?}: {} by {}, class {}, retries {}",
            started.elapsed(),
            receipt.shares[0].path,
            written.nics[0].nic,
            receipt.shares[0].class.as_str(),
            receipt.retries + read.receipt.retries,
        );
        Ok(())
    }

    fn gone(&self) -> Result<(), Failure> {
        let source = self.source(4096, 1)?;
        ask(&self.peer, "forget")?;
        let to = self.remote.slice(0..4096)?;
        match self.peer.write(&source.whole(), &to, PATIENT).wait() {
            Err(error) if error.code() == "no-such-region" => {
                println!("{error}");
                Ok(())
            }
            other => Err(format!("{other:?}").into()),
        }
    }

    fn stall(&self, allowed: Duration) -> Result<(), Failure> {
        let source = self.source(1 << 20, 1)?;
        let to = self.remote.slice(0..1 << 20)?;
        println!("writing");
        for count in 0u64.. {
            let started = Instant::now();
            let ended = self
                .peer
                .write(&source.whole(), &to, Options::within(allowed))
                .wait();
            let Err(error) = ended else { continue };
            let took = started.elapsed();
            // The memory is the caller's again once the transfer has ended.
            let back = source.deregister();
            println!(
                "{count} writes, then {} after {took:?}: {error}",
                error.code()
            );
            return match (error.code(), back) {
                // The regions of a process that dies go before its queue pairs.
                ("peer-lost" | "deadline-exceeded" | "no-such-region", Ok(_))
                    if took < allowed + Duration::from_secs(4) =>
                {
                    Ok(())
                }
                (_, back) => Err(format!("too late, or still held: {back:?}").into()),
            };
        }
        Ok(())
    }

    /// Writes until the bytes go as `wanted` says of the number of NICs that moved some, and of the receipt.
    fn until(
        &self,
        what: &str,
        allowed: Duration,
        wanted: impl Fn(usize, &Receipt) -> bool,
    ) -> Result<(), Failure> {
        const EACH: usize = 4 << 20;
        let source = self.source(EACH, 3)?;
        let to = self.remote.slice(0..EACH as u64)?;
        let began = Instant::now();
        while began.elapsed() < allowed {
            let options = Options::within(allowed / 3).verified();
            let written = self.peer.write(&source.whole(), &to, options).wait();
            let written = written.map_err(|e| format!("{e}: {:?}", self.peer.rails()))?;
            let (receipt, used) = (&written.receipt, written.nics.len());
            if !receipt.is_whole() || receipt.shares.len() != 1 {
                return Err(format!("the receipt says {:?}", receipt.shares).into());
            }
            if wanted(used, receipt) {
                let nics = written.nics.iter();
                let nics: Vec<_> = nics.map(|n| format!("{} {}", n.nic, n.bytes)).collect();
                println!(
                    "{what}: {}, retries {}, obstacles {}",
                    nics.join(" and "),
                    receipt.retries,
                    receipt.obstacles.len(),
                );
                return Ok(());
            }
        }
        Err(format!("{what}: not within {allowed:?}: {:?}", self.peer.rails()).into())
    }

    fn rails(&self, allowed: Duration) -> Result<(), Failure> {
        self.until("shared", allowed, |nics, _| nics == 2)?;
        self.until("one was cut in the middle", allowed, |_, receipt| {
            let failed = |obstacle: &Obstacle| obstacle.code == Code::RailFailed;
            receipt.retries > 0 && receipt.obstacles.iter().any(failed)
        })?;
        self.until("by the other", allowed, |nics, _| nics == 1)?;
        self.until("shared again", allowed, |nics, _| nics == 2)?;
        let returns: u64 = self.peer.rails().iter().map(|rail| rail.returns).sum();
        match returns {
            0 => Err("no rail says that it came back".into()),
            _ => Ok(()),
        }
    }
}

fn run() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["serve", device, address] => serve(device, address),
        ["verify", device, address, bytes] => East::new(device, address)?.verify(bytes.parse()?),
        ["gone", device, address] => East::new(device, address)?.gone(),
        ["rails", devices, address, seconds] => {
            let allowed = Duration::from_secs(seconds.parse()?);
            East::new(devices, address)?.rails(allowed)
        }
        ["stall", device, address, seconds] => {
            let allowed = Duration::from_secs(seconds.parse()?);
            East::new(device, address)?.stall(allowed)
        }
        ["slow", device, address, seconds] => {
            let allowed = Duration::from_secs(seconds.parse()?);
            East::new(device, address)?.slow(allowed)
        }
        [
            "flood",
            device,
            address,
            seconds,
            bytes,
            kind @ ("values" | "bytes"),
        ] => {
            let allowed = Duration::from_secs(seconds.parse()?);
            let valued = *kind == "values";
            East::new(device, address)?.flood(allowed, bytes.parse()?, valued)
        }
        ["beyond", device, address] => East::new(device, address)?.beyond(),
        ["stale", device, address] => East::new(device, address)?.stale(address),
        ["hostile", device, address] => foul::hostile(device, address),
        _ => Err("rail MODE DEVICE ADDRESS:PORT [VALUE]".into()),
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("rail: {failure}");
            ExitCode::FAILURE
        }
    }
}
