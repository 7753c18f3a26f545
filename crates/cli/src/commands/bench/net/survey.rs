//! The survey itself: every path, task and size in turn, round after round, so that a disturbance
//! of the machine falls on all of them.

use std::collections::BTreeSet;
use std::net::{ToSocketAddrs, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use crowfly_machine::usage;
use crowfly_machine::verbs::Verbs;
use crowfly_mover::bench::{self, BenchError, Held, Line, Task};
use crowfly_mover::fabric::provider::Provider;
use crowfly_mover::fabric::verbs::{VerbsSettings, discover};
use crowfly_mover::fabric::{FabricError, LineRate, Settings};
use crowfly_route::hop::{Capacity, Provenance};
use crowfly_route::obstacle::{Code, Obstacle};
use crowfly_route::receipt::Path;
use crowfly_route::units::BytesPerSecond;

use super::other::Other;
use super::standing::{About, Ceilings, Missing, Standing};
use crate::failure::Failure;
use crate::output::Output;
use crate::render::text::count;

/// Round trips of larger transfers say what their rate says.
const LATENCY_UP_TO: u64 = 1 << 20;
/// More threads copy no faster than these.
const MAX_THREADS: usize = 4;
/// So many plain connections over loopback are tried for the ceiling.
const STREAMS: [usize; 3] = [1, 2, 4];

/// What is asked.
pub struct Plan {
    /// The paths that must be there; all there are when empty.
    pub wanted: Vec<Path>,
    /// Bytes of the transfers, in order.
    pub sizes: Vec<u64>,
    /// How often.
    pub rounds: usize,
    /// How long each sample lasts.
    pub time: Duration,
    /// Whether both directions at once are measured.
    pub both: bool,
    /// The memory of this end.
    pub memory: Held,
}

impl Plan {
    fn tasks(&self, size: u64) -> Vec<Task> {
        let mut tasks = vec![Task::Write, Task::Read];
        if self.both {
            tasks.push(Task::Both);
        }
        if size <= LATENCY_UP_TO {
            tasks.push(Task::PingPong);
        }
        tasks
    }
}

/// Measures everything.
pub fn run(
    plan: &Plan,
    mut settings: Settings,
    other: &Other,
    out: &Output,
) -> Result<Standing, Failure> {
    let unusable = add_verbs(&mut settings);
    let (lines, missing) = open(plan, &settings, other, &unusable)?;
    let each: usize = plan.sizes.iter().map(|size| plan.tasks(*size).len()).sum();
    let progress = out.progress();
    progress.steps("measuring", (plan.rounds * each * lines.len()) as u64);
    let mut samples = Vec::new();
    let mut ceilings = Ceilings::default();
    for round in 0..plan.rounds {
        for (index, size) in turns(&plan.sizes, round).enumerate() {
            let tasks = plan.tasks(*size);
            for (turn, line) in turns(&lines, round + index).enumerate() {
                for task in turns(&tasks, round + turn) {
                    samples.push(line.sample(*task, *size, plan.time)?);
                    progress.at(samples.len() as u64);
                }
            }
            look_at_copies(&mut ceilings, &lines, *size, plan.time)?;
        }
        if lines.iter().any(|line| is_within_host(line, other)) {
            look_at_streams(&mut ceilings, plan.time)?;
        }
    }
    for line in &lines {
        match line.path() {
            Path::Tcp if is_within_host(line, other) => {}
            Path::Tcp => look_at_interfaces(&mut ceilings, line),
            _ => look_at_links(&mut ceilings, line, &settings),
        }
    }
    let about = About {
        peer: other.name(),
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        load: usage::load_average(),
        rounds: plan.rounds,
        seconds: plan.time.as_secs_f64(),
    };
    let rails = lines.iter().flat_map(Line::rails).collect();
    Ok(Standing::new(about, samples, &ceilings, missing, rails))
}

/// Adds the RDMA ports of this machine to the settings; answers why others cannot be used.
fn add_verbs(settings: &mut Settings) -> Vec<Obstacle> {
    match Verbs::load() {
        Ok(verbs) => {
            let (nics, obstacles) = discover(&verbs, &VerbsSettings::default());
            let nics = nics.into_iter().map(|nic| -> Arc<dyn Provider> { nic });
            settings.providers.extend(nics);
            obstacles
        }
        Err(error) => vec![
            Obstacle::blocks(Code::NoRdmaDevice, "libibverbs cannot be used")
                .seen("libibverbs", error.to_string()),
        ],
    }
}

/// A line for each path that both ends have, and why there is none for the others. A path that was
/// asked for by name must be there.
fn open(
    plan: &Plan,
    settings: &Settings,
    other: &Other,
    unusable: &[Obstacle],
) -> Result<(Vec<Line>, Vec<Missing>), Failure> {
    let most = plan.sizes.last().copied().unwrap_or(0);
    let (mut lines, mut missing) = (Vec::new(), Vec::new());
    let paths: &[Path] = if plan.wanted.is_empty() {
        &Path::FABRIC
    } else {
        &plan.wanted
    };
    for path in paths.iter().copied() {
        let error = match Line::between(path, other.whom(), settings, most, &plan.memory) {
            Ok(line) => {
                lines.push(line);
                continue;
            }
            Err(BenchError::Fabric(error @ FabricError::Refused { .. })) => error,
            Err(error) => return Err(error.into()),
        };
        let mut obstacles = error.obstacles().to_vec();
        obstacles.retain(|obstacle| !is_of_another(obstacle, path));
        if path == Path::Verbs {
            obstacles.extend(unusable.iter().cloned());
        }
        if !plan.wanted.is_empty() {
            return Err(Failure::from(error).with_obstacles(obstacles));
        }
        missing.push(Missing { path, obstacles });
    }
    Ok((lines, missing))
}

/// Whether an obstacle was seen at a NIC of another path, which is written `PATH:NIC`.
fn is_of_another(obstacle: &Obstacle, path: Path) -> bool {
    let others = || Path::FABRIC.into_iter().filter(|other| *other != path);
    let of = |at: &str| {
        at.split_once(':')
            .is_some_and(|(of, _)| others().any(|other| other.as_str() == of))
    };
    let mut evidence = obstacle.evidence.iter();
    evidence.any(|evidence| of(&evidence.at))
}

/// All of them, beginning with the next one each time.
fn turns<T>(things: &[T], first: usize) -> impl Iterator<Item = &T> {
    (0..things.len()).filter_map(move |turn| things.get((turn + first) % things.len()))
}

/// What the CPU's copies in memory could do, where that is what a path does.
fn look_at_copies(
    ceilings: &mut Ceilings,
    lines: &[Line],
    size: u64,
    time: Duration,
) -> Result<(), Failure> {
    let copying = [Path::Shm, Path::Cma];
    let by_cores = |line: &Line| copying.contains(&line.path()) && line.is_of_host_memory();
    if !lines.iter().any(by_cores) {
        return Ok(());
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    for threads in [1, threads.min(MAX_THREADS)] {
        let how = format!("copies in memory by {}", count(threads, "thread"));
        for path in copying {
            let rate = bench::copies(size, threads, time)?;
            ceilings.offer(path, Some(size), rate, &how);
        }
    }
    Ok(())
}

/// What plain connections over loopback do.
fn look_at_streams(ceilings: &mut Ceilings, time: Duration) -> Result<(), Failure> {
    for streams in STREAMS {
        let how = format!("{} over loopback", count(streams, "plain connection"));
        ceilings.offer(Path::Tcp, None, bench::streams(streams, time)?, &how);
    }
    Ok(())
}

/// Whether a line goes by sockets and never leaves this host.
fn is_within_host(line: &Line, other: &Other) -> bool {
    line.path() == Path::Tcp && (other.is_local() || is_of_this_host(other.address()))
}

/// Whether an address is one of this host's own: those are what a socket can be bound to, and what is
/// sent there goes by the loopback, whichever interface has it.
fn is_of_this_host(address: &str) -> bool {
    let Ok(mut resolved) = address.to_socket_addrs() else {
        return false;
    };
    resolved.all(|address| UdpSocket::bind((address.ip(), 0)).is_ok())
}

/// What the cards negotiated that sockets go by to another host, or why that is not known.
fn look_at_interfaces(ceilings: &mut Ceilings, line: &Line) {
    let names: BTreeSet<String> = line.rails().into_iter().map(|rail| rail.nic).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    match interfaces_rate(&names, LineRate::of) {
        Ok(rate) => ceilings.link(
            Path::Tcp,
            Capacity {
                rate: BytesPerSecond(rate),
                provenance: Provenance::LinkRate(names.join(" and ")),
            },
        ),
        Err(because) => ceilings.unknown(Path::Tcp, because),
    }
}

/// The rate of some interfaces together, in bytes per second, or why there is none.
fn interfaces_rate(names: &[&str], of: impl Fn(&str) -> LineRate) -> Result<f64, String> {
    let rate = |name: &&str| match of(name) {
        LineRate::Negotiated(rate) => Ok(rate),
        LineRate::Virtual(kind) => Err(format!(
            "{name} is a virtual interface ({kind}), which has no rate of its own"
        )),
        LineRate::Loopback => Err(format!("{name} is the loopback interface")),
        LineRate::Unsaid => Err(format!("the driver of {name} does not say its rate")),
        LineRate::Absent => Err(format!("there is no interface {name} any more")),
    };
    match names {
        [] => Err("no connection was made".into()),
        names => names.iter().map(rate).sum(),
    }
}

/// What the NICs of a path negotiated, where they say.
fn look_at_links(ceilings: &mut Ceilings, line: &Line, settings: &Settings) {
    let rails = line.rails();
    let of_path = settings.providers.iter().filter(|provider| {
        let mut rails = rails.iter();
        provider.path() == line.path() && rails.any(|rail| rail.nic == provider.nic())
    });
    let nics: Vec<_> = of_path.collect();
    let rates: Option<Vec<f64>> = nics.iter().map(|nic| nic.line_rate()).collect();
    if let Some(rates) = rates.filter(|rates| !rates.is_empty()) {
        let names: Vec<&str> = nics.iter().map(|nic| nic.nic()).collect();
        let capacity = Capacity {
            rate: BytesPerSecond(rates.iter().sum()),
            provenance: Provenance::LinkRate(names.join(" and ")),
        };
        ceilings.link(line.path(), capacity);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_has_its_turn_once_a_round_and_none_always_goes_first() {
        let order = |round| turns(&["a", "b", "c"], round).copied().collect::<String>();
        assert_eq!([order(0), order(1), order(5)], ["abc", "bca", "cab"]);
        assert_eq!(turns::<u8>(&[], 3).count(), 0);
    }

    #[test]
    fn given_sockets_to_another_host_the_ceiling_is_what_the_cards_negotiated_or_why_it_is_unknown()
    {
        let of = |name: &str| match name {
            "eth0" => LineRate::Negotiated(12.5e9),
            "eth1" => LineRate::Negotiated(3.125e9),
            "veth0" => LineRate::Virtual("veth".into()),
            _ => LineRate::Unsaid,
        };
        assert_eq!(interfaces_rate(&["eth0", "eth1"], of), Ok(15.625e9));
        let why = interfaces_rate(&["eth0", "veth0"], of).expect_err("unknown");
        assert!(
            why.starts_with("veth0 is a virtual interface (veth)"),
            "{why}"
        );
        let why = interfaces_rate(&["virtio"], of).expect_err("unknown");
        assert_eq!(why, "the driver of virtio does not say its rate");
        assert!(interfaces_rate(&[], of).is_err());
    }

    #[test]
    fn given_an_address_of_this_host_it_is_told_from_others() {
        assert!(is_of_this_host("127.0.0.1:7") && is_of_this_host("localhost:7"));
        assert!(!is_of_this_host("192.0.2.77:7") && !is_of_this_host("no address"));
    }

    #[test]
    fn given_obstacles_of_all_nics_those_of_the_path_in_question_stay() {
        let at = |at: &str| Obstacle::blocks(Code::PortDown, "it is down").seen(at, "down");
        assert!(is_of_another(&at("tcp:ifb0"), Path::Verbs));
        assert!(!is_of_another(&at("tcp:ifb0"), Path::Tcp));
        assert!(!is_of_another(&at("verbs:mlx5_0:1"), Path::Verbs));
        assert!(!is_of_another(&at("libibverbs"), Path::Verbs));
    }

    #[test]
    fn large_transfers_are_not_measured_one_at_a_time() {
        let plan = Plan {
            wanted: vec![],
            sizes: vec![],
            rounds: 1,
            time: Duration::ZERO,
            both: true,
            memory: Held::Host,
        };
        let (small, large) = (plan.tasks(64), plan.tasks(LATENCY_UP_TO + 1));
        assert_eq!(small, [Task::Write, Task::Read, Task::Both, Task::PingPong]);
        assert_eq!(large, [Task::Write, Task::Read, Task::Both]);
    }
}
