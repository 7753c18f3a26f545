//! A queue pair between two processes, made over a TCP connection on which requests then go.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use crowfly_machine::verbs::{
    Access, Completion, CompletionQueue, GidFilter, MemoryRegion, Pinned, QueuePair, Ready, Remote,
    Route, Sizes, Verbs, ranked,
};

use crate::{Failure, Options};

/// A page that a device may change at any time.
#[repr(align(4096))]
struct Page([AtomicU8; PAGE]);

const PAGE: usize = 4096;

/// Bytes that a device may change at any time; they start where a page does, as those of the fabric's
/// buffers.
pub struct Memory {
    pages: Box<[Page]>,
    len: usize,
}

// SAFETY: the box never moves its bytes, and atomics may be changed by others at any time.
unsafe impl Pinned for Memory {
    fn address(&self) -> u64 {
        self.pages.as_ptr() as u64
    }

    fn len(&self) -> usize {
        self.len
    }
}

impl Memory {
    pub fn zeroed(len: usize) -> Arc<Self> {
        let page = || Page([const { AtomicU8::new(0) }; PAGE]);
        let pages = (0..len.div_ceil(PAGE)).map(|_| page()).collect();
        Arc::new(Self { pages, len })
    }

    pub fn set(&self, at: usize, byte: u8) {
        self.pages[at / PAGE].0[at % PAGE].store(byte, Ordering::Release);
    }

    pub fn get(&self, at: usize) -> u8 {
        self.pages[at / PAGE].0[at % PAGE].load(Ordering::Acquire)
    }

    /// Bytes that depend on their place and on `seed`.
    pub fn fill(&self, len: usize, seed: u64) {
        for at in 0..len {
            self.set(at, byte_at(at, seed));
        }
    }

    pub fn is_filled(&self, len: usize, seed: u64) -> Result<(), Failure> {
        match (0..len).find(|at| self.get(*at) != byte_at(*at, seed)) {
            None => Ok(()),
            Some(at) => Err(format!("byte {at} of {len} is wrong").into()),
        }
    }
}

fn byte_at(at: usize, seed: u64) -> u8 {
    let x = (at as u64 ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x >> 56) as u8
}

pub const SIZES: Sizes = Sizes {
    requests: 128,
    receives: 128,
    pieces: 4,
    inline: 220,
};

/// Bytes for received messages.
pub const INBOX: usize = 512;

/// One end.
pub struct Link {
    pub pair: QueuePair<Ready>,
    pub queue: Arc<CompletionQueue>,
    pub memory: Arc<Memory>,
    pub region: Option<Arc<MemoryRegion>>,
    /// Where messages are received, apart from what the peer writes.
    pub inbox: (Arc<Memory>, Arc<MemoryRegion>),
    pub remote: Remote,
    pub remote_len: usize,
    pub lines: Lines,
}

/// The TCP connection, by lines.
pub struct Lines {
    reader: BufReader<TcpStream>,
    writer: TcpStream,
}

impl Lines {
    pub fn say(&mut self, line: &str) -> Result<(), Failure> {
        Ok(writeln!(self.writer, "{line}")?)
    }

    /// The next line; `None` when the other end is gone.
    pub fn hear(&mut self) -> Result<Option<String>, Failure> {
        let mut line = String::new();
        let got = self.reader.read_line(&mut line)?;
        Ok((got > 0).then(|| line.trim().to_owned()))
    }

    pub fn ask(&mut self, line: &str) -> Result<String, Failure> {
        self.say(line)?;
        self.hear()?.ok_or_else(|| "the server is gone".into())
    }
}

pub fn listen(options: &Options) -> Result<TcpStream, Failure> {
    let (stream, _) = TcpListener::bind(&options.address)?.accept()?;
    Ok(stream)
}

pub fn dial(options: &Options) -> Result<TcpStream, Failure> {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        match TcpStream::connect(&options.address) {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() >= end => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// Opens the device, registers `len` bytes, and joins the other end's queue pair.
pub fn join(options: &Options, stream: TcpStream, len: usize) -> Result<Link, Failure> {
    stream.set_nodelay(true)?;
    let mut lines = Lines {
        reader: BufReader::new(stream.try_clone()?),
        writer: stream,
    };
    let context = Verbs::load()?.open(&options.device)?;
    let port = context.port(1)?;
    let gids = ranked(&context.addresses(&port)?, &GidFilter::Any);
    let local = gids.first().ok_or("the port has no address")?.clone();
    let domain = context.protection_domain()?;
    let queue = context.completion_queue(SIZES.requests + SIZES.receives, true)?;
    let pair = domain.queue_pair(&queue, &queue, SIZES)?.initialise(1)?;
    let memory = Memory::zeroed(len);
    let region = domain.register(Arc::clone(&memory) as Arc<dyn Pinned>, Access::ALL)?;
    let inbox = Memory::zeroed(INBOX);
    let received = domain.register(Arc::clone(&inbox) as Arc<dyn Pinned>, Access::ALL)?;
    let (address, key) = (region.address(), region.keys().remote);
    let gid = u128::from_be_bytes(local.address);
    lines.say(&format!(
        "{} {gid:x} {address:x} {key:x} {len}",
        pair.number()
    ))?;
    let theirs = lines.hear()?.ok_or("the other end is gone")?;
    let words: Vec<&str> = theirs.split(' ').collect();
    let &[number, gid, address, key, remote_len] = words.as_slice() else {
        return Err(format!("not a greeting: {theirs}").into());
    };
    let pair = pair.connect(&Route {
        port,
        remote_gid: u128::from_str_radix(gid, 16)?.to_be_bytes(),
        local: Some(local),
        remote_lid: 0,
        remote_qp: number.parse()?,
        remote_psn: 0,
        local_psn: 0,
        mtu: port.mtu,
        reads: 16,
        patience: options.patience,
    })?;
    // Neither end sends before both can receive.
    lines.say("ready")?;
    if lines.hear()?.as_deref() != Some("ready") {
        return Err("the other end did not get ready".into());
    }
    Ok(Link {
        pair,
        queue,
        memory,
        region: Some(region),
        inbox: (inbox, received),
        remote: Remote {
            address: u64::from_str_radix(address, 16)?,
            key: u32::from_str_radix(key, 16)?,
        },
        remote_len: remote_len.parse()?,
        lines,
    })
}

impl Link {
    pub fn memory_len(&self) -> usize {
        self.memory.len()
    }

    pub fn region(&self) -> Result<&Arc<MemoryRegion>, Failure> {
        self.region.as_ref().ok_or_else(|| "deregistered".into())
    }

    pub fn at(&self, offset: usize) -> Remote {
        Remote {
            address: self.remote.address + offset as u64,
            ..self.remote
        }
    }

    /// Writes one run, signalled.
    pub fn write(&mut self, wr_id: u64, len: usize, to: Remote) -> Result<(), Failure> {
        let slice = self.region()?.slice(0..len)?;
        let mut batch = self.pair.batch();
        batch.write(wr_id, vec![slice], to, None)?;
        batch.ring()?;
        Ok(())
    }

    /// Completions up to a deadline, at least one unless it passes.
    pub fn completions(&mut self, end: Instant) -> Result<Vec<Completion>, Failure> {
        let mut all = Vec::new();
        loop {
            self.queue.poll(&mut all)?;
            if !all.is_empty() || Instant::now() >= end {
                break;
            }
            self.queue.arm()?;
            self.queue.poll(&mut all)?;
            if all.is_empty() {
                let left = end.saturating_duration_since(Instant::now());
                self.queue.wait(left)?;
            }
        }
        for completion in &all {
            self.pair.retire(completion);
        }
        Ok(all)
    }
}
