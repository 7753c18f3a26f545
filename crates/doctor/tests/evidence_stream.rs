//! Large logs: in bounded memory. How fast they are read, `cargo bench` tells.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crowfly_doctor::evidence::{Artefact, Intake};

/// Counts what is allocated now, and the most that ever was.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
/// Tests of one file run side by side, and the counters are the whole process's.
static ALONE: Mutex<()> = Mutex::new(());

// SAFETY: every call is passed on unchanged to the system's allocator, which upholds the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(now, Relaxed);
        // SAFETY: the caller's layout, as it came.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: `memory` came from `alloc` above with this layout.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MIB: usize = 1 << 20;
/// What a stream of any length may take.
const MEMORY_LIMIT: usize = 64 * MIB;

/// Reads `total` bytes of lines that `line` writes, in pieces; gives the peak of memory over what was
/// there before.
fn stream(total: usize, mut line: impl FnMut(usize, &mut String)) -> (usize, Vec<Artefact>) {
    const PIECE: usize = 256 << 10;
    let (mut text, mut fed, mut number) = (String::with_capacity(2 * PIECE), 0, 0);
    let before = NOW.load(Relaxed);
    PEAK.store(before, Relaxed);
    let mut intake = Intake::new("big.log");
    while fed < total {
        text.clear();
        while text.len() < PIECE {
            line(number, &mut text);
            number += 1;
        }
        intake.feed(text.as_bytes());
        fed += text.len();
    }
    let document = intake.finish();
    let peak = PEAK.load(Relaxed).saturating_sub(before);
    (
        peak,
        document.sections.into_iter().map(|s| s.artefact).collect(),
    )
}

/// A job of `ranks` ranks on 8-GPU nodes whose channels are set up again and again.
fn channels(ranks: usize) -> impl FnMut(usize, &mut String) {
    move |number, text| {
        let (rank, channel) = (number % ranks, number / ranks % 32);
        let (node, peer) = (rank / 8, (rank + 8) % ranks);
        let gdr = if rank % 3 == 0 { "" } else { "/GDRDMA" };
        writeln!(
            text,
            "node-{node:04}:{}:{} [{}] NCCL INFO Channel {channel:02}/0 : {rank}[{}] -> {peer}[{}] [send] via NET/IB/{}{gdr}",
            1000 + rank,
            90_000 + rank,
            rank % 8,
            rank % 8,
            rank % 8,
            rank % 8,
        )
        .unwrap();
    }
}

#[test]
fn given_a_log_of_any_length_then_memory_stays_bounded() {
    let _alone = ALONE.lock();
    let total = if cfg!(debug_assertions) {
        24 * MIB
    } else {
        2048 * MIB
    };
    let (peak, artefacts) = stream(total, channels(1024));
    assert!(peak < MEMORY_LIMIT, "{} MiB", peak / MIB);
    let [Artefact::NcclLog(log)] = artefacts.as_slice() else {
        panic!("{}", artefacts.len())
    };
    let plain = log.totals.net_channels(false) as f64 / log.lines as f64;
    assert!((plain - 1.0 / 3.0).abs() < 0.01, "{plain}");
    assert_eq!(log.processes.len(), 1024);
    println!("{} MiB read, peak {} MiB", total / MIB, peak / MIB);
}

#[test]
fn given_a_log_that_never_repeats_itself_then_memory_stays_bounded() {
    let _alone = ALONE.lock();
    let total = if cfg!(debug_assertions) {
        24 * MIB
    } else {
        512 * MIB
    };
    let (peak, artefacts) = stream(total, |number, text| {
        let n = number * 7919;
        writeln!(text, "host{n}:{n}:{n} [0] NCCL INFO Channel 00/0 : {n}[0] -> {}[0] [send] via NET/net{n}/{n}/GDRDMA", n + 1).unwrap();
        writeln!(
            text,
            "host{n}:{n}:{n} [0] NCCL INFO NCCL_X{n} set by environment to {n}"
        )
        .unwrap();
        writeln!(
            text,
            "host{n}:{n}:{n} [0] x.cc:{n} NCCL WARN word{} went wrong",
            "abcdefghij".repeat(1 + number % 90)
        )
        .unwrap();
        writeln!(text, "comm host{n}:{n}:{n} [0] NCCL INFO comm 0x{n:x} rank {number} nranks {n} cudaDev 0 busId {n:x} - Init START").unwrap();
    });
    assert!(peak < MEMORY_LIMIT, "{} MiB", peak / MIB);
    let [Artefact::NcclLog(log)] = artefacts.as_slice() else {
        panic!("{}", artefacts.len())
    };
    assert!(log.beyond_limits > 0);
    println!(
        "{} MiB read, peak {} MiB, {} beyond limits",
        total / MIB,
        peak / MIB,
        log.beyond_limits
    );
}

#[test]
fn given_one_line_without_an_end_then_memory_stays_bounded() {
    let _alone = ALONE.lock();
    let (peak, _) = stream(96 * MIB, |_, text| {
        text.push_str("[0] NCCL INFO = {\"a\": <x NET/IB/0 ")
    });
    assert!(peak < MEMORY_LIMIT, "{} MiB", peak / MIB);
}

#[test]
fn given_many_machines_in_one_text_then_memory_stays_bounded() {
    let _alone = ALONE.lock();
    let (peak, artefacts) = stream(16 * MIB, |number, text| {
        let (host, size) = (number % 1000, number + 1);
        writeln!(
            text,
            "h{host}: {size:12} {size:12} float sum -1 10.0 1.00 1.00 0 10.0 1.00 1.00 0"
        )
        .unwrap();
    });
    assert!(peak < MEMORY_LIMIT, "{} MiB", peak / MIB);
    assert!(artefacts.len() > 100, "{}", artefacts.len());
}
