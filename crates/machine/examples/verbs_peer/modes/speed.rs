//! How fast: as `ib_write_bw` and `ib_write_lat` measure it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crowfly_machine::verbs::Completion;

use crate::link::{Link, SIZES};
use crate::{Failure, Options};

/// How long a benchmark may go without anything happening.
const STALLED: Duration = Duration::from_secs(20);
/// How long to look for completions before sleeping, as the fabric does.
const SPIN: Duration = Duration::from_micros(50);
/// Looks at memory between two pauses: an emulated CPU leaves its loop at each.
const LOOKS: usize = 256;
/// Pauses between two looks at the clock: to ask for the time is a system call where the kernel does not trust
/// the CPU's counter, as in the rig's guests, and what answers there keeps the other end's CPU waiting.
const PAUSES: usize = 64;
/// Rounds that are not counted.
const WARM_UP: usize = 20;

/// Keeps the queue full of writes of one size to one place, each signalled, and fetches completions
/// as the fabric does: it looks for a moment, then sleeps until one comes.
pub fn bandwidth(options: &Options, link: &mut Link) -> Result<(), Failure> {
    let (size, count) = (check_size(link, options.size)?, options.count);
    let region = Arc::clone(link.region()?);
    let remote = link.remote;
    let mut completions: Vec<Completion> = Vec::new();
    let (mut posted, mut done) = (0, 0);
    let started = Instant::now();
    let mut last = started;
    while done < count {
        while posted < count && posted - done < SIZES.requests {
            let mut batch = link.pair.batch();
            batch.write(posted as u64, vec![region.slice(0..size)?], remote, None)?;
            batch.ring()?;
            posted += 1;
        }
        completions.clear();
        if link.queue.poll(&mut completions)? == 0 {
            if last.elapsed() > STALLED {
                return Err("nothing completes".into());
            }
            if last.elapsed() < SPIN {
                std::hint::spin_loop();
                continue;
            }
            link.queue.arm()?;
            if link.queue.poll(&mut completions)? == 0 {
                link.queue.wait(STALLED)?;
                continue;
            }
        }
        last = Instant::now();
        for completion in &completions {
            completion
                .outcome
                .map_err(|failed| failed.status.to_string())?;
            link.pair.retire(completion);
        }
        done += completions.len();
    }
    let seconds = started.elapsed().as_secs_f64();
    let rate = (size * count) as f64 / seconds / 1e6;
    println!("{{\"mode\":\"bw\",\"size\":{size},\"count\":{count},\"mb_per_s\":{rate:.3}}}");
    Ok(())
}

/// Two ends write to each other in turn and watch their memory for the other's mark; half a round
/// is the latency.
pub fn latency(options: &Options, link: &mut Link) -> Result<(), Failure> {
    let (size, count) = (check_size(link, options.size)?, options.count);
    link.lines
        .ask(&format!("pong {size} {}", count + WARM_UP))?;
    let mut times = Vec::with_capacity(count);
    // One look at the clock for each round, where one ends and the next begins.
    let mut began = Instant::now();
    for round in 0..count + WARM_UP {
        mark(link, size, round)?;
        watch(link, size, round)?;
        let now = Instant::now();
        if round >= WARM_UP {
            times.push((now - began).as_secs_f64() * 1e6 / 2.0);
        }
        began = now;
    }
    times.sort_by(f64::total_cmp);
    let (typical, mean) = (times[count / 2], times.iter().sum::<f64>() / count as f64);
    println!(
        "{{\"mode\":\"lat\",\"size\":{size},\"count\":{count},\"typical_us\":{typical:.2},\"average_us\":{mean:.2}}}"
    );
    Ok(())
}

/// The other end of [`latency`].
pub fn pong(link: &mut Link, size: usize, count: usize) -> Result<(), Failure> {
    for round in 0..count {
        watch(link, size, round)?;
        mark(link, size, round)?;
    }
    Ok(())
}

/// The last byte of a message tells its round; 0 is what memory starts with.
const fn sign(round: usize) -> u8 {
    (round % 255) as u8 + 1
}

/// Writes from the second half of the memory into the first half of the other end's.
fn mark(link: &mut Link, size: usize, round: usize) -> Result<(), Failure> {
    let start = link.memory_len() / 2;
    link.memory.set(start + size - 1, sign(round));
    let remote = link.remote;
    let inline = link.pair.sizes().inline;
    let bytes: Vec<u8> = match size <= inline {
        true => (start..start + size)
            .map(|at| link.memory.get(at))
            .collect(),
        false => Vec::new(),
    };
    let slice = link.region()?.slice(start..start + size)?;
    let mut batch = link.pair.batch();
    match size <= inline {
        true => batch.write_inline(round as u64, &bytes, remote, None)?,
        false => batch.write(round as u64, vec![slice], remote, None)?,
    };
    batch.ring()?;
    Ok(())
}

fn watch(link: &mut Link, size: usize, round: usize) -> Result<(), Failure> {
    let mut since: Option<Instant> = None;
    let mut completions = Vec::new();
    let is_here = || link.memory.get(size - 1) == sign(round);
    let looked = || {
        let here = (0..LOOKS).any(|_| is_here());
        if !here {
            std::hint::spin_loop();
        }
        here
    };
    while !(0..PAUSES).any(|_| looked()) {
        if since.get_or_insert_with(Instant::now).elapsed() > STALLED {
            return Err(format!("round {round} does not arrive").into());
        }
    }
    link.queue.poll(&mut completions)?;
    for completion in &completions {
        completion
            .outcome
            .map_err(|failed| failed.status.to_string())?;
        link.pair.retire(completion);
    }
    Ok(())
}

fn check_size(link: &Link, size: usize) -> Result<usize, Failure> {
    let most = link.memory_len();
    (1..=most)
        .contains(&size)
        .then_some(size)
        .ok_or_else(|| format!("1 to {most} bytes").into())
}
