//! Which algorithm a call uses, and why. All ranks choose by the same numbers, so all choose the same;
//! the choice travels with every chunk, and one that differs is an error and not a hang.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crowfly_route::collective::{Collective, Shape};
use crowfly_route::receipt::Path;
use crowfly_route::units::{BytesPerSecond, significant};
use serde::Serialize;

use super::flat::ALONE;
use super::hosts::Hosts;

/// How a collective is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    /// One rank alone: nothing moves.
    Alone,
    /// All take what they need straight from each other's memory; on one host.
    Flat,
    /// One ring through all ranks.
    Ring,
    /// Everyone to everyone.
    Direct,
    /// Recursive halving and doubling (Rabenseifner).
    Halving,
    /// Recursive doubling: everything in every step.
    Doubling,
    /// A binomial tree.
    Tree,
    /// One rank after the other, chunk by chunk.
    Chain,
    /// Inside hosts over shared memory, between hosts in rings, one for each rank of a host.
    Hierarchical,
    /// Messages to ranks at doubling distances.
    Dissemination,
    /// Straight in the buffers of all ranks, which are memory of the group; on one host. Few numbers are
    /// told to everyone instead, in one wait.
    InPlace,
    /// As NCCL chooses; of GPUs' memory.
    Nccl,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Alone,
        Self::Flat,
        Self::Ring,
        Self::Direct,
        Self::Halving,
        Self::Doubling,
        Self::Tree,
        Self::Chain,
        Self::Hierarchical,
        Self::Dissemination,
        Self::InPlace,
        Self::Nccl,
    ];

    /// The word used in options, tables and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Flat => "flat",
            Self::Ring => "ring",
            Self::Direct => "direct",
            Self::Halving => "halving",
            Self::Doubling => "doubling",
            Self::Tree => "tree",
            Self::Chain => "chain",
            Self::Hierarchical => "hierarchical",
            Self::Dissemination => "dissemination",
            Self::InPlace => "in-place",
            Self::Nccl => "nccl",
        }
    }

    /// Those that can do a collective among these hosts.
    pub fn of(collective: Collective, hosts: &Hosts, ranks: usize) -> Vec<Self> {
        if ranks == 1 {
            return vec![Self::Alone];
        }
        let mut all = Vec::new();
        if hosts.len() == 1 {
            all.push(Self::Flat);
        }
        all.extend_from_slice(match collective {
            Collective::AllReduce => &[
                Self::Ring,
                Self::Direct,
                Self::Halving,
                Self::Doubling,
                Self::Tree,
            ],
            Collective::ReduceScatter | Collective::AllGather => &[Self::Ring, Self::Direct],
            Collective::Broadcast => &[Self::Tree, Self::Chain],
            Collective::AllToAll => &[Self::Direct],
            Collective::Barrier => &[Self::Dissemination],
        });
        if collective == Collective::AllReduce && hosts.len() > 1 && hosts.most() > 1 {
            all.push(Self::Hierarchical);
        }
        all
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The text names no algorithm.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no algorithm; choose flat, ring, direct, halving, doubling, tree, chain, hierarchical or dissemination"
)]
pub struct UnknownAlgorithm(pub String);

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(text: &str) -> Result<Self, UnknownAlgorithm> {
        let named = Self::ALL.into_iter().find(|known| known.as_str() == text);
        named.ok_or_else(|| UnknownAlgorithm(text.to_owned()))
    }
}

/// What a step and a byte cost between two ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkCost {
    /// Seconds from one rank's call to the other's.
    pub latency: f64,
    /// Bytes per second.
    pub rate: f64,
    /// Where the rate is from.
    pub basis: Basis,
}

/// Where a rate is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// Of the slowest rank's links, as its NICs and its machine's topology say.
    LinkRate,
    /// Nobody said.
    Assumed,
    /// The caller did.
    Given,
}

impl Basis {
    /// In words, after a rate.
    const fn as_str(self) -> &'static str {
        match self {
            Self::LinkRate => "link rate",
            Self::Assumed => "assumed",
            Self::Given => "given",
        }
    }
}

/// A step by RDMA, in seconds. Assumed, near what cards of two servers behind one switch reach.
const RDMA_LATENCY: f64 = 3e-6;

impl LinkCost {
    /// Of the rails between two hosts, by their path and what its links carry together, where that is
    /// known.
    pub(super) fn of(path: Path, line_rate: Option<f64>) -> Self {
        let assumed = Costs::default().network;
        let latency = match path {
            Path::Verbs => RDMA_LATENCY,
            _ => assumed.latency,
        };
        match line_rate {
            // Cores set a limit to sockets before fast links do.
            Some(rate) if path == Path::Verbs || rate < assumed.rate => Self {
                latency,
                rate,
                basis: Basis::LinkRate,
            },
            _ => Self { latency, ..assumed },
        }
    }

    /// What holds for both.
    pub(super) fn worse(self, other: Self) -> Self {
        let slower = if other.rate < self.rate { other } else { self };
        Self {
            latency: self.latency.max(other.latency),
            ..slower
        }
    }
}

/// What the choice goes by. It must be the same at all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Between ranks of one host.
    pub shared: LinkCost,
    /// Between hosts.
    pub network: LinkCost,
}

impl Default for Costs {
    /// Assumed, near what two cores of a server reach over shared memory and over TCP.
    fn default() -> Self {
        Self {
            shared: LinkCost {
                latency: 1e-6,
                rate: 5e9,
                basis: Basis::Assumed,
            },
            network: LinkCost {
                latency: 30e-6,
                rate: 1.2e9,
                basis: Basis::Assumed,
            },
        }
    }
}

/// How much faster a pass over boards is than a chunk's way from one rank to another. Assumed, near
/// what two cores measure.
const BOARD_SPEEDUP: f64 = 4.0;

/// How much longer everyone sending to everyone takes than its traffic would, where there are more
/// than two: streams wait for each other. Assumed, near what four ranks measure over loopback.
const CROWDING: f64 = 1.5;
/// Bytes per second at which a rank reduces what comes. Assumed, near what a core measures.
const REDUCING: f64 = 10e9;

/// What was chosen last. Programs make the same call again and again, and a choice takes longer than
/// few numbers take to reduce.
#[derive(Debug, Default)]
pub(crate) struct LastChoice(Option<(Asked, Choice)>);

/// What a choice depends on, within a group.
type Asked = (Collective, usize, Option<Algorithm>);

impl LastChoice {
    /// The choice for a call: the last one, where it was for the same.
    pub(crate) fn or_choose(
        &mut self,
        asked: Asked,
        hosts: &Hosts,
        ranks: usize,
        costs: &Costs,
    ) -> Option<Choice> {
        if let Some((last, choice)) = &self.0
            && *last == asked
        {
            return Some(choice.clone());
        }
        let (collective, bytes, way) = asked;
        let choice = choose(collective, bytes, hosts, ranks, costs, way)?;
        self.0 = Some((asked, choice.clone()));
        Some(choice)
    }
}

/// What was chosen.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Choice {
    pub algorithm: Algorithm,
    pub because: Arc<str>,
}

/// The way of a call on the group's own memory, which takes no other; `None` where another is asked
/// for.
pub(crate) fn in_place(asked: Option<Algorithm>) -> Option<Choice> {
    let algorithm = Algorithm::InPlace;
    let fits = asked.is_none_or(|asked| asked == algorithm);
    fits.then(|| Choice {
        algorithm,
        because: "the buffers are memory that all ranks have mapped".into(),
    })
}

/// The fastest way by the model, or the one asked for if it can be used.
pub(crate) fn choose(
    collective: Collective,
    bytes: usize,
    hosts: &Hosts,
    ranks: usize,
    costs: &Costs,
    asked: Option<Algorithm>,
) -> Option<Choice> {
    let usable = Algorithm::of(collective, hosts, ranks);
    if let Some(asked) = asked.filter(|_| ranks > 1) {
        return usable.contains(&asked).then(|| Choice {
            algorithm: asked,
            because: "asked for".into(),
        });
    }
    let mut timed: Vec<(f64, Algorithm)> = usable
        .into_iter()
        .map(|way| {
            (
                seconds(way, collective, bytes as f64, hosts, ranks as f64, costs),
                way,
            )
        })
        .collect();
    timed.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (least, algorithm) = *timed.first()?;
    let link = match hosts.len() {
        0 | 1 => String::new(),
        _ => {
            let (rate, basis) = (BytesPerSecond(costs.network.rate), costs.network.basis);
            format!("; {rate} between hosts ({})", basis.as_str())
        }
    };
    let because = match timed.get(1) {
        None => "the only way".into(),
        Some((next, other)) => format!(
            "{} µs by the model, {other} {} µs{link}",
            significant(least * 1e6),
            significant(next * 1e6)
        )
        .into(),
    };
    Some(Choice { algorithm, because })
}

/// How long a way takes by the model.
fn seconds(
    way: Algorithm,
    collective: Collective,
    bytes: f64,
    hosts: &Hosts,
    ranks: f64,
    costs: &Costs,
) -> f64 {
    let link = if hosts.len() > 1 {
        costs.network
    } else {
        costs.shared
    };
    let (shared, local) = (costs.shared, hosts.most() as f64);
    let depth = ranks.log2().ceil();
    let shape = match way {
        // All but the first are never chosen by time: they go with the memory.
        Algorithm::Alone | Algorithm::InPlace | Algorithm::Nccl => return 0.0,
        Algorithm::Flat => {
            // Written to the board, read by whoever reduces it, and read again as the result; all
            // ranks do so at the same time, and the boards stay in the caches.
            let passes = collective.rounds() + 1.0;
            let alone = bytes * ranks <= ALONE as f64;
            let waits = if alone {
                1.0
            } else {
                collective.rounds().max(1.0)
            };
            return waits * shared.latency + passes * bytes / (BOARD_SPEEDUP * shared.rate);
        }
        Algorithm::Ring => Shape::ring(collective, ranks),
        Algorithm::Direct => Shape::direct(collective, ranks),
        Algorithm::Halving => Shape::halving(collective, ranks),
        Algorithm::Doubling => {
            let beyond = if depth == ranks.log2() { 0.0 } else { 1.0 };
            Shape {
                steps: depth + beyond,
                volume: depth + beyond,
            }
        }
        Algorithm::Tree => Shape::tree(collective, ranks),
        Algorithm::Chain => Shape {
            steps: ranks - 1.0,
            volume: 1.0,
        },
        Algorithm::Dissemination => Shape {
            steps: depth,
            volume: 0.0,
        },
        Algorithm::Hierarchical => {
            let inside = Shape::direct(collective, local);
            let outside = Shape::ring(collective, hosts.len() as f64);
            return inside.seconds(bytes, shared.latency, shared.rate)
                + outside.seconds(bytes, link.latency, link.rate);
        }
    };
    let crowded = way == Algorithm::Direct && ranks > 2.0 && collective != Collective::AllToAll;
    let rate = link.rate / if crowded { CROWDING } else { 1.0 };
    let reduced = match (collective, way) {
        (Collective::AllReduce, Algorithm::Doubling | Algorithm::Tree) => depth,
        (Collective::AllReduce | Collective::ReduceScatter, _) => (ranks - 1.0) / ranks,
        _ => 0.0,
    };
    shape.seconds(bytes, link.latency, rate) + reduced * bytes / REDUCING
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(collective: Collective, bytes: usize, hosts: &[u8]) -> Algorithm {
        let (of, costs) = (Hosts::of(hosts), Costs::default());
        let choice = choose(collective, bytes, &of, hosts.len(), &costs, None);
        choice.expect("there is a way").algorithm
    }

    #[test]
    fn ranks_of_one_host_use_each_others_memory_and_ranks_alone_do_nothing() {
        assert_eq!(
            chosen(Collective::AllReduce, 1 << 20, &[0, 0]),
            Algorithm::Flat
        );
        assert_eq!(
            chosen(Collective::AllReduce, 1 << 20, &[0]),
            Algorithm::Alone
        );
    }

    #[test]
    fn few_bytes_on_one_host_are_reduced_by_everyone_after_one_wait() {
        assert_eq!(chosen(Collective::AllReduce, 64, &[0, 0]), Algorithm::Flat);
        assert_eq!(chosen(Collective::Barrier, 0, &[0, 0]), Algorithm::Flat);
    }

    #[test]
    fn between_hosts_few_bytes_take_few_steps_and_many_bytes_the_least_traffic() {
        let apart = [0, 1, 2, 3, 4, 5, 6, 7];
        assert_eq!(
            chosen(Collective::AllReduce, 64, &apart),
            Algorithm::Doubling
        );
        let many = chosen(Collective::AllReduce, 256 << 20, &apart);
        assert_eq!(
            many,
            Algorithm::Halving,
            "as much as a ring, in fewer steps"
        );
        assert_eq!(chosen(Collective::Broadcast, 64, &apart), Algorithm::Tree);
        assert_eq!(
            chosen(Collective::Broadcast, 256 << 20, &apart),
            Algorithm::Chain
        );
    }

    #[test]
    fn what_links_carry_decides_between_hosts_and_the_reason_says_where_it_is_from() {
        let hosts = Hosts::of(&[0, 1, 2, 3]);
        let by = |network: LinkCost| {
            let costs = Costs {
                network,
                ..Costs::default()
            };
            let choice = choose(Collective::AllReduce, 64 << 10, &hosts, 4, &costs, None);
            choice.expect("there is a way")
        };
        let sockets = by(LinkCost::of(Path::Tcp, Some(50e9)));
        assert_eq!(sockets.algorithm, Algorithm::Doubling);
        assert!(
            sockets
                .because
                .ends_with("; 1.20 GB/s between hosts (assumed)"),
            "{}",
            sockets.because
        );
        let rdma = by(LinkCost::of(Path::Verbs, Some(50e9)));
        assert_eq!(rdma.algorithm, Algorithm::Direct, "reducing is what counts");
        assert!(
            rdma.because
                .ends_with("; 50.0 GB/s between hosts (link rate)"),
            "{}",
            rdma.because
        );
    }

    #[test]
    fn a_group_goes_by_its_worst_link_whoever_has_it() {
        let (fast, slow) = (
            LinkCost::of(Path::Verbs, Some(50e9)),
            LinkCost::of(Path::Tcp, Some(125e6)),
        );
        assert_eq!(slow.basis, Basis::LinkRate);
        for worst in [fast.worse(slow), slow.worse(fast)] {
            assert_eq!(worst, slow);
        }
        let unknown = LinkCost::of(Path::Verbs, None);
        assert_eq!((unknown.rate, unknown.basis), (1.2e9, Basis::Assumed));
    }

    #[test]
    fn several_ranks_on_each_of_several_hosts_reduce_inside_first() {
        let chosen = chosen(Collective::AllReduce, 64 << 20, &[0, 0, 0, 0, 1, 1, 1, 1]);
        assert_eq!(chosen, Algorithm::Hierarchical);
    }

    #[test]
    fn the_last_choice_is_remembered_for_the_same_call_alone() {
        let (hosts, costs) = (Hosts::of(&[0, 1]), Costs::default());
        let mut last = LastChoice::default();
        for (bytes, asked) in [
            (8, None),
            (8, None),
            (256 << 20, None),
            (8, Some(Algorithm::Tree)),
        ] {
            let call = (Collective::AllReduce, bytes, asked);
            let fresh = choose(call.0, bytes, &hosts, 2, &costs, asked);
            assert_eq!(last.or_choose(call, &hosts, 2, &costs), fresh);
        }
        let impossible = (Collective::AllReduce, 8, Some(Algorithm::Flat));
        assert_eq!(last.or_choose(impossible, &hosts, 2, &costs), None);
    }

    #[test]
    fn what_was_asked_for_is_used_or_refused_and_the_reason_says_so() {
        let (hosts, costs) = (Hosts::of(&[0, 1]), Costs::default());
        let asked = |way| choose(Collective::AllReduce, 8, &hosts, 2, &costs, Some(way));
        assert_eq!(
            &*asked(Algorithm::Ring).expect("usable").because,
            "asked for"
        );
        assert_eq!(asked(Algorithm::Flat), None, "two hosts share no memory");
    }
}
