//! What the two processes do.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crowfly_machine::verbs::{
    Access, ExportError, Exporter, GpuFacts, Kind, Mapping, Pinned, Remote, Status, Verbs,
    register_device,
};

use crate::link::{INBOX, Link, SIZES, dial, join, listen};
use crate::{Failure, Options};

mod speed;

/// The server's memory: enough for the largest message.
const SERVED: usize = 8 << 20;
/// How long completions that must come may take.
const PATIENT: Duration = Duration::from_secs(60);

pub fn run(options: &Options) -> Result<(), Failure> {
    match options.mode.as_str() {
        "serve" => return serve(options),
        "dma-buf" => return dma_buf(options),
        _ => {}
    }
    let mut link = join(options, dial(options)?, SERVED)?;
    match options.mode.as_str() {
        "verify" => verify(options, &mut link),
        "messages" => messages(&mut link),
        "bad-key" => {
            let key = link.remote.key ^ 0x0055_5500;
            refused(&mut link, 4096, |link| Remote { key, ..link.remote })
        }
        "outside" => refused(&mut link, 4096, |link| link.at(link.remote_len - 2048)),
        "gone" => {
            link.lines.ask("forget")?;
            refused(&mut link, 4096, |link| link.remote)
        }
        "no-receive" => no_receive(&mut link),
        "stall" => stall(options, &mut link),
        "bw" => speed::bandwidth(options, &mut link),
        "lat" => speed::latency(options, &mut link),
        mode => Err(format!("unknown mode {mode}").into()),
    }
}

/// Does what the other end asks until it is gone.
fn serve(options: &Options) -> Result<(), Failure> {
    let mut link = join(options, listen(options)?, SERVED)?;
    for (wr_id, slot) in (0..INBOX).step_by(64).enumerate() {
        let slice = link.inbox.1.slice(slot..slot + 64)?;
        link.pair.receive(wr_id as u64, Some(slice))?;
    }
    while let Some(line) = link.lines.hear()? {
        let words: Vec<&str> = line.split(' ').collect();
        let answer = match words.as_slice() {
            ["check", len, seed] => match link.memory.is_filled(len.parse()?, seed.parse()?) {
                Ok(()) => "right".to_owned(),
                Err(wrong) => wrong.to_string(),
            },
            ["inbox", len, seed] => match link.inbox.0.is_filled(len.parse()?, seed.parse()?) {
                Ok(()) => "right".to_owned(),
                Err(wrong) => wrong.to_string(),
            },
            ["byte", at] => link.memory.get(at.parse()?).to_string(),
            ["forget"] => {
                link.region = None;
                "forgotten".to_owned()
            }
            ["arrived", count] => arrived(&mut link, count.parse()?)?,
            ["pong", size, count] => {
                link.lines.say("pinging")?;
                speed::pong(&mut link, size.parse()?, count.parse()?)?;
                "ponged".to_owned()
            }
            _ => format!("unknown request {line}"),
        };
        link.lines.say(&answer)?;
    }
    Ok(())
}

/// Waits for received messages and says what they were.
fn arrived(link: &mut Link, count: usize) -> Result<String, Failure> {
    let end = Instant::now() + PATIENT;
    let mut seen = Vec::new();
    while seen.len() < count && Instant::now() < end {
        for completion in link.completions(end)? {
            let done = completion.outcome.map_err(|f| f.status.to_string())?;
            let kind = match done.kind {
                Kind::Received => "message",
                Kind::Notified => "notice",
                _ => continue,
            };
            let value = done.immediate.map_or("none".into(), |v| v.to_string());
            seen.push(format!("{kind}:{}:{value}", done.bytes));
        }
    }
    Ok(seen.join(","))
}

/// Writes and reads back, four requests to a chain.
fn verify(options: &Options, link: &mut Link) -> Result<(), Failure> {
    let size = options.size.min(SERVED);
    link.memory.fill(size, 1);
    let started = Instant::now();
    moved(link, size, true)?;
    let answer = link.lines.ask(&format!("check {size} 1"))?;
    if answer != "right" {
        return Err(format!("written: {answer}").into());
    }
    link.memory.fill(size, 2);
    moved(link, size, false)?;
    link.memory.is_filled(size, 1)?;
    println!(
        "{size} bytes written and read back in {:?}",
        started.elapsed()
    );
    Ok(())
}

/// Moves the first `size` bytes in pieces of at most 64 KiB.
fn moved(link: &mut Link, size: usize, write: bool) -> Result<(), Failure> {
    const PIECE: usize = 64 << 10;
    const CHAIN: usize = 4;
    let end = Instant::now() + PATIENT;
    let pieces: Vec<usize> = (0..size).step_by(PIECE).collect();
    for (number, chain) in pieces.chunks(CHAIN).enumerate() {
        while link.pair.room() < CHAIN {
            succeeded(link, end)?;
        }
        let region = Arc::clone(link.region()?);
        let remote = link.remote;
        let mut batch = link.pair.batch();
        for start in chain {
            let slice = region.slice(*start..size.min(start + PIECE))?;
            let there = Remote {
                address: remote.address + *start as u64,
                ..remote
            };
            match write {
                true => batch.write(number as u64, vec![slice], there, None)?,
                false => batch.read(number as u64, there, vec![slice])?,
            };
        }
        batch.ring()?;
    }
    while link.pair.outstanding() > 0 {
        succeeded(link, end)?;
    }
    Ok(())
}

/// Takes completions, all of which must be good.
fn succeeded(link: &mut Link, end: Instant) -> Result<usize, Failure> {
    let completions = link.completions(end)?;
    if completions.is_empty() {
        return Err("nothing completed in time".into());
    }
    for completion in &completions {
        completion
            .outcome
            .map_err(|failed| failed.status.to_string())?;
    }
    Ok(completions.len())
}

fn messages(link: &mut Link) -> Result<(), Failure> {
    link.memory.fill(64, 3);
    let slice = link.region()?.slice(0..64)?;
    let at = link.at(4096);
    let mut batch = link.pair.batch();
    batch.send(1, vec![slice], Some(41))?;
    batch.write_inline(2, b"inside", at, Some(42))?;
    batch.write(3, Vec::new(), Remote { address: 0, key: 0 }, Some(u32::MAX))?;
    batch.ring()?;
    let answer = link.lines.ask("arrived 3")?;
    let expected = "message:64:41,notice:6:42,notice:0:4294967295";
    if answer != expected {
        return Err(format!("arrived {answer} in place of {expected}").into());
    }
    let answer = link.lines.ask("inbox 64 3")?;
    let inside = link.lines.ask("byte 4101")?;
    if answer != "right" || inside != b'e'.to_string() {
        return Err(format!("the message is {answer}, the inline write ends in {inside}").into());
    }
    println!("{expected}");
    Ok(())
}

/// The peer's NIC must refuse, and what follows must be flushed.
fn refused(link: &mut Link, len: usize, to: impl Fn(&Link) -> Remote) -> Result<(), Failure> {
    let to = to(link);
    link.write(1, len, to)?;
    link.write(2, len, to)?;
    let statuses = statuses(link, 2)?;
    if statuses != [Status::REMOTE_ACCESS, Status::FLUSHED] {
        return Err(format!("{statuses:?}").into());
    }
    let names: Vec<String> = statuses.iter().map(|s| s.name()).collect();
    println!("{}", names.join(" "));
    Ok(())
}

/// The statuses of the next failures.
fn statuses(link: &mut Link, count: usize) -> Result<Vec<Status>, Failure> {
    let end = Instant::now() + PATIENT;
    let mut statuses = Vec::new();
    while statuses.len() < count && Instant::now() < end {
        for completion in link.completions(end)? {
            match completion.outcome {
                Ok(done) => return Err(format!("it worked: {done:?}").into()),
                Err(failed) => statuses.push(failed.status),
            }
        }
    }
    Ok(statuses)
}

fn no_receive(link: &mut Link) -> Result<(), Failure> {
    // The server has posted eight.
    let posted = INBOX as u64 / 64;
    for wr_id in 0..=posted {
        let mut batch = link.pair.batch();
        batch.send(wr_id, Vec::new(), None)?;
        batch.ring()?;
    }
    let end = Instant::now() + PATIENT;
    let mut good = 0;
    loop {
        for completion in link.completions(end)? {
            match completion.outcome {
                Ok(_) => good += 1,
                Err(failed) if failed.status == Status::RECEIVER_NOT_READY && good == posted => {
                    println!("{}", failed.status.name());
                    return Ok(());
                }
                Err(failed) => return Err(format!("after {good}: {}", failed.status).into()),
            }
        }
        if Instant::now() >= end {
            return Err("no failure in time".into());
        }
    }
}

/// Keeps writing until nothing completes for the deadline, then takes the memory back.
fn stall(options: &Options, link: &mut Link) -> Result<(), Failure> {
    println!("writing");
    let mut completed = 0u64;
    let mut failure = None;
    let stalled = loop {
        while failure.is_none() && link.pair.room() > SIZES.requests - 8 {
            link.write(completed, options.size.min(SERVED), link.remote)?;
        }
        let since = Instant::now();
        let completions = link.completions(since + options.deadline)?;
        for completion in &completions {
            match completion.outcome {
                Ok(_) => completed += 1,
                Err(failed) => failure = failure.or(Some(failed.status)),
            }
        }
        if completions.is_empty() || failure.is_some() {
            break since.elapsed();
        }
    };
    if stalled > options.deadline + Duration::from_secs(1) {
        return Err(format!("noticed only after {stalled:?}").into());
    }
    let stopping = Instant::now();
    link.pair.stop()?;
    while link.pair.outstanding() > 0 && stopping.elapsed() < PATIENT {
        link.completions(stopping + PATIENT)?;
    }
    let region = link.region.take().ok_or("no region")?;
    let holders = Arc::strong_count(&region) - 1;
    if link.pair.outstanding() > 0 || holders > 0 {
        return Err(format!("{holders} requests still hold the memory").into());
    }
    drop(region);
    let first = failure.map_or("none before the deadline".into(), Status::name);
    println!(
        "{completed} writes done, failure: {first}; flushed and let go of {:?} after the stop",
        stopping.elapsed()
    );
    match (failure, options.patience.retries) {
        // This retry count never ends on soft-RoCE: the deadline does.
        (None, 7) | (Some(Status::RETRIES_EXHAUSTED), _) => Ok(()),
        // The regions of a process that dies go before its queue pairs.
        (Some(Status::FLUSHED | Status::REMOTE_ACCESS), _) => Ok(()),
        (failure, _) => Err(format!("{failure:?}").into()),
    }
}

/// Memory of this process as a dma-buf, through the kernel's udmabuf device: the same call into
/// the NIC's driver as for a GPU's memory.
struct Udmabuf {
    file: OwnedFd,
    start: u64,
}

/// `struct udmabuf_create` of linux/udmabuf.h
#[repr(C)]
struct UdmabufCreate {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

/// `UDMABUF_CREATE`: `_IOW('u', 0x42, struct udmabuf_create)`
const UDMABUF_CREATE: libc::Ioctl = 0x4018_7542;

impl Exporter for Udmabuf {
    fn owner(&self) -> &str {
        "udmabuf"
    }

    fn export(&self, start: u64, len: u64, _: Mapping) -> Result<OwnedFd, ExportError> {
        let failed = |call| {
            let error = std::io::Error::last_os_error();
            ExportError {
                call,
                code: error.raw_os_error().unwrap_or(0),
                meaning: error.to_string(),
            }
        };
        let device = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/udmabuf");
        let device = device.map_err(|_| failed("open of /dev/udmabuf"))?;
        let create = UdmabufCreate {
            memfd: self.file.as_raw_fd() as u32,
            flags: 1,
            offset: start - self.start,
            size: len,
        };
        // SAFETY: the structure is the one the call reads.
        let fd = unsafe { libc::ioctl(device.as_raw_fd(), UDMABUF_CREATE, &raw const create) };
        if fd < 0 {
            return Err(failed("UDMABUF_CREATE"));
        }
        // SAFETY: the call made the descriptor for us.
        Ok(unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) })
    }
}

/// A mapping of a whole dma-buf: as with a GPU's memory, there are no pages to pin behind it.
struct Mapped {
    address: u64,
    len: usize,
}

// SAFETY: the mapping is never undone.
unsafe impl Pinned for Mapped {
    fn address(&self) -> u64 {
        self.address
    }

    fn len(&self) -> usize {
        self.len
    }
}

fn map(file: &OwnedFd, len: usize) -> Result<u64, Failure> {
    use rustix::mm::{MapFlags, ProtFlags, mmap};
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address the kernel chooses.
    let at = unsafe {
        mmap(
            std::ptr::null_mut(),
            len,
            protection,
            MapFlags::SHARED,
            file,
            0,
        )
    }?;
    Ok(at as u64)
}

fn dma_buf(options: &Options) -> Result<(), Failure> {
    use rustix::fs::{MemfdFlags, SealFlags};
    const LEN: usize = 1 << 20;
    let file =
        rustix::fs::memfd_create("udmabuf", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, LEN as u64)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK)?;
    let driver = Udmabuf { file, start: 0 };
    let whole = driver.export(0, LEN as u64, Mapping::Default)?;
    let address = map(&whole, LEN)?;
    let driver = Udmabuf {
        start: address,
        ..driver
    };
    let memory: Arc<dyn Pinned> = Arc::new(Mapped { address, len: LEN });
    let context = Verbs::load()?.open(&options.device)?;
    let domain = context.protection_domain()?;
    println!("probe: {:?}", domain.takes_dma_bufs());
    let facts = GpuFacts::default();
    match register_device(&domain, &memory, &driver, &facts, Access::ALL) {
        Ok(registered) => Err(format!("it worked: {registered:?}").into()),
        Err(obstacles) => {
            for obstacle in &obstacles {
                let shows: Vec<&str> = obstacle.evidence.iter().map(|e| e.shows.as_str()).collect();
                println!(
                    "{}: {} [{}]",
                    obstacle.code,
                    obstacle.summary,
                    shows.join("; ")
                );
            }
            let codes: Vec<&str> = obstacles.iter().map(|o| o.code.as_str()).collect();
            let expected = ["nic-without-dma-buf", "no-peer-memory-client"];
            (codes == expected)
                .then_some(())
                .ok_or_else(|| format!("{codes:?}").into())
        }
    }
}
