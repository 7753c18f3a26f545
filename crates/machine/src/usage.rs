//! CPU time of threads, as the kernel accounts it.

use std::mem::MaybeUninit;

use crowfly_route::receipt::CpuSeconds;

/// CPU time of the calling thread since it started.
pub fn this_thread() -> CpuSeconds {
    of(libc::RUSAGE_THREAD)
}

/// CPU seconds of the calling thread since it started, to the nanosecond and up to this moment.
/// [`this_thread`] is only as new as the last time that the kernel did its accounts, some milliseconds
/// ago, so it says nothing about pieces of work that are shorter.
pub fn this_thread_by_now() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a writable timespec.
    let rc = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    if rc != 0 {
        return 0.0;
    }
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// CPU time of all threads of this process since it started, those that ended included.
pub fn this_process() -> CpuSeconds {
    of(libc::RUSAGE_SELF)
}

fn of(who: libc::c_int) -> CpuSeconds {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is to writable memory of the type that the call fills.
    let rc = unsafe { libc::getrusage(who, usage.as_mut_ptr()) };
    if rc != 0 {
        return CpuSeconds::default();
    }
    // SAFETY: all-zero bytes are a valid `rusage`, and the call filled it.
    let usage = unsafe { usage.assume_init() };
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    CpuSeconds {
        user: seconds(usage.ru_utime),
        system: seconds(usage.ru_stime),
    }
}

/// How many programs wanted to run, on average over the last minute; `None` where the system does
/// not say.
pub fn load_average() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    text.split_whitespace().next()?.parse().ok()
}

/// CPU seconds of the kernel workers that io_uring started on behalf of the calling thread.
///
/// They are tasks of this process named `iou-wrk-<thread id>`; the kernel reaps them after some
/// idle seconds, so ask before the ring is dropped.
pub fn io_workers_of_this_thread() -> f64 {
    let name = format!("iou-wrk-{}", rustix::thread::gettid().as_raw_nonzero());
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else {
        return 0.0;
    };
    tasks
        .flatten()
        .filter(|task| {
            std::fs::read_to_string(task.path().join("comm"))
                .is_ok_and(|comm| comm.trim_end() == name)
        })
        .filter_map(|task| {
            let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse::<u64>().ok()
        })
        .map(|nanoseconds| nanoseconds as f64 / 1e9)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_thread_is_seen_to_use_cpu_time() {
        let before = this_thread();
        let mut x = 1u64;
        while this_thread().total() - before.total() < 0.02 {
            for i in 0..100_000u64 {
                x = x.wrapping_mul(6364136223846793005).wrapping_add(i);
            }
        }
        let began = this_thread_by_now();
        for i in 0..100_000u64 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(i);
        }
        assert_ne!(std::hint::black_box(x), 0);
        let took = this_thread_by_now() - began;
        assert!(took > 1e-6 && took < 0.5, "{took}");
        assert_eq!(io_workers_of_this_thread(), 0.0);
    }
}
