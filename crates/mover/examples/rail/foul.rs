//! What goes wrong by somebody's fault: a peer that takes nothing, a descriptor that says too much or is of another
//! life or version, and an end that tells wrong things of itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crowfly_mover::fabric::provider::{
    Endpoint, Joining, Link, Meeting, Provider, Registration, Role,
};
use crowfly_mover::fabric::{Access, Backing, FabricError, Options, RegionDescriptor, Transfer};
use crowfly_route::hop::Class;
use crowfly_route::obstacle::Obstacle;
use crowfly_route::receipt::Path;

use super::{East, Failure, PATIENT, SERVED, WRITTEN, ask, fabric_by};

/// Where a descriptor has its version, and its length.
const VERSION_AT: usize = 4;
const LEN_AT: usize = VERSION_AT + 2 + 16;
/// How long whoever says wrong things may be kept in suspense.
const SUSPENSE: Duration = Duration::from_secs(20);

/// The descriptor with some bytes changed and its checksum made right again, as a forger would.
fn forged(
    descriptor: &RegionDescriptor,
    at: usize,
    change: &[u8],
) -> Result<RegionDescriptor, Failure> {
    let mut bytes = descriptor.to_bytes()?;
    bytes.truncate(bytes.len() - 8);
    for (byte, change) in bytes.iter_mut().skip(at).zip(change) {
        *byte = *change;
    }
    let sum = blake3::hash(&bytes);
    bytes.extend_from_slice(&sum.as_bytes()[..8]);
    Ok(RegionDescriptor::from_bytes(&bytes)?)
}

fn code(transfer: Transfer) -> Result<&'static str, Failure> {
    match transfer.wait() {
        Err(error) => Ok(error.code()),
        Ok(delivery) => Err(format!("it went well: {:?}", delivery.receipt).into()),
    }
}

impl East {
    /// Values without end, until one is too late; then once more, when the peer has gone on.
    pub fn slow(&self, allowed: Duration) -> Result<(), Failure> {
        let source = self.source(4096, 1)?;
        let to = self.remote.slice(0..4096)?;
        println!("writing");
        let began = Instant::now();
        let mut count = 0u64;
        let error = loop {
            let started = Instant::now();
            let options = Options::within(allowed);
            let written = self.peer.write_imm(&source.whole(), &to, WRITTEN, options);
            match written.wait() {
                Ok(_) if began.elapsed() < SUSPENSE => count += 1,
                Ok(_) => return Err(format!("{count} values, and none was too late").into()),
                Err(error) if started.elapsed() < allowed + Duration::from_secs(2) => break error,
                Err(error) => {
                    let took = started.elapsed();
                    return Err(format!("too late by itself, after {took:?}: {error}").into());
                }
            }
        };
        // Its NIC may give up before that, and finds nobody who makes the rail anew.
        if !["deadline-exceeded", "peer-lost"].contains(&error.code()) {
            return Err(format!("{}: {error}", error.code()).into());
        }
        println!("stopped after {count} values: {error}");
        // The peer goes on, and so does all that it was asked.
        self.verify(65_536)
    }

    /// A length and a right that the region does not have.
    pub fn beyond(&self) -> Result<(), Failure> {
        let larger = forged(&self.remote, LEN_AT, &(2 * SERVED as u64).to_le_bytes())?;
        let source = self.source(8192, 1)?;
        let end = SERVED as u64;
        for range in [end - 4096..end + 4096, end..end + 8192] {
            let to = larger.slice(range)?;
            let written = self.peer.write(&source.whole(), &to, PATIENT);
            let read = self.peer.read(&source.whole(), &to, PATIENT);
            for code in [code(written)?, code(read)?] {
                // A NIC says only that the key is not one for that.
                if code != "no-such-region" {
                    return Err(format!("it ended by {code}").into());
                }
            }
        }
        self.verify(65_536)
    }

    /// The peer is started anew at the same address while this waits.
    pub fn stale(self, address: &str) -> Result<(), Failure> {
        let newer = (RegionDescriptor::from_bytes(&{
            let mut bytes = self.remote.to_bytes()?;
            bytes[VERSION_AT] = bytes[VERSION_AT].wrapping_add(1);
            bytes
        }))
        .map_err(|error| error.code());
        if newer.as_ref().err() != Some(&"descriptor-version") {
            return Err(format!("of another version: {newer:?}").into());
        }
        println!("writing");
        let began = Instant::now();
        while self.peer.lost().is_none() {
            if began.elapsed() > 2 * SUSPENSE {
                return Err("the peer did not end".into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        println!("lost");
        let peer = loop {
            match self.fabric.connect(address, PATIENT) {
                Ok(peer) => break peer,
                Err(error) if began.elapsed() > 3 * SUSPENSE => return Err(error.into()),
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        };
        let source = self.source(4096, 1)?;
        let to = self.remote.slice(0..4096)?;
        let found = code(peer.write(&source.whole(), &to, PATIENT))?;
        if found != "stale-descriptor" {
            return Err(format!("the old descriptor: {found}").into());
        }
        let remote = ask(&peer, "describe")?.parse()?;
        drop(source);
        let anew = Self {
            remote,
            peer,
            ..self
        };
        anew.verify(65_536)
    }
}

/// A NIC whose halves of links tell wrong things of themselves.
struct Liar {
    nic: Arc<dyn Provider>,
    seed: AtomicU64,
}

struct Lying {
    half: Box<dyn Endpoint>,
    seed: u64,
}

impl Provider for Liar {
    fn path(&self) -> Path {
        self.nic.path()
    }

    fn class(&self) -> Class {
        self.nic.class()
    }

    fn nic(&self) -> &str {
        self.nic.nic()
    }

    fn register(
        &self,
        memory: &Arc<Backing>,
        access: Access,
    ) -> Result<Registration, Vec<Obstacle>> {
        self.nic.register(memory, access)
    }

    fn endpoint(&self, role: Role, meeting: &Meeting) -> Result<Box<dyn Endpoint>, Obstacle> {
        Ok(Box::new(Lying {
            half: self.nic.endpoint(role, meeting)?,
            seed: self.seed.fetch_add(1, Ordering::Relaxed),
        }))
    }
}

impl Endpoint for Lying {
    fn hello(&self) -> Vec<u8> {
        let mut hello = self.half.hello();
        let at = self.seed as usize / 2 % hello.len().max(1);
        match self.seed % 6 {
            0 => hello.truncate(at),
            1 => hello.resize(4096, 0xff),
            // Bits of the version, of queue pairs' numbers, of addresses and of whatever else there is.
            _ => {
                for byte in hello.iter_mut().skip(at).step_by(7) {
                    *byte ^= 1 << (self.seed % 8);
                }
            }
        }
        hello
    }

    fn join(
        self: Box<Self>,
        theirs: &[u8],
        joining: Joining,
    ) -> Result<Arc<dyn Link>, FabricError> {
        self.half.join(theirs, joining)
    }
}

/// Each lie ends in time, with a code or a transfer that has one, and the next honest one is served.
pub fn hostile(device: &str, address: &str) -> Result<(), Failure> {
    const LIES: u64 = 12;
    let liars = fabric_by(device, "127.0.0.1:0", |nic| {
        let seed = AtomicU64::new(0);
        Arc::new(Liar { nic, seed })
    })?;
    let source = East::pattern(&liars, 4096, 1)?;
    for lie in 0..LIES {
        let began = Instant::now();
        let options = Options::within(Duration::from_secs(4));
        let ended = liars.connect(address, options).and_then(|peer| {
            let said = peer.send(b"describe", options).wait();
            let told = said.and_then(|()| peer.recv(options).wait())?;
            let text = String::from_utf8_lossy(&told).into_owned();
            let remote: RegionDescriptor = text.parse()?;
            let to = remote.slice(0..4096)?;
            peer.write(&source.whole(), &to, options).wait().map(drop)
        });
        let took = began.elapsed();
        let told = ended.map_or_else(|error| error.code(), |()| "nothing");
        println!("lie {lie}: {told} after {took:?}");
        if took > SUSPENSE {
            return Err(format!("lie {lie} ended after {took:?}").into());
        }
    }
    drop((source, liars));
    East::new(device, address)?.verify(65_536)
}
