//! What the members of a group do together, and what each way of doing it costs: the arithmetic
//! that the engine's choice and the planner's estimates share. It lives here because both stand on
//! this crate and neither on the other.
//!
//! The model is the usual one: a step costs a latency, a byte costs the reciprocal of a rate
//! (Hockney, "The communication challenge for MPP", 1994). Steps and volumes of the algorithms are
//! those of Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
//! MPICH", 2005.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What the members of a group do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Collective {
    /// Each ends with the sum of all.
    AllReduce,
    /// Each ends with its part of the sum.
    ReduceScatter,
    /// Each ends with the parts of all.
    AllGather,
    /// Each ends with what one had.
    Broadcast,
    /// Each has something for each other.
    AllToAll,
    /// Nobody goes on before all have come.
    Barrier,
}

impl Collective {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::AllReduce,
        Self::ReduceScatter,
        Self::AllGather,
        Self::Broadcast,
        Self::AllToAll,
        Self::Barrier,
    ];

    /// The word used in options, tables and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AllReduce => "all-reduce",
            Self::ReduceScatter => "reduce-scatter",
            Self::AllGather => "all-gather",
            Self::Broadcast => "broadcast",
            Self::AllToAll => "all-to-all",
            Self::Barrier => "barrier",
        }
    }

    /// Bus bandwidth in units of bytes over time, as nccl-tests defines it.
    pub fn bus_factor(self, ranks: f64) -> f64 {
        let others = (ranks - 1.0) / ranks;
        match self {
            Self::AllReduce => 2.0 * others,
            Self::ReduceScatter | Self::AllGather | Self::AllToAll => others,
            Self::Broadcast => 1.0,
            Self::Barrier => 0.0,
        }
    }

    /// How often the data goes round: an all-reduce is a reduce-scatter and an all-gather.
    pub const fn rounds(self) -> f64 {
        match self {
            Self::AllReduce => 2.0,
            Self::Barrier => 0.0,
            Self::ReduceScatter | Self::AllGather | Self::Broadcast | Self::AllToAll => 1.0,
        }
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The text names no collective.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no collective; choose all-reduce, reduce-scatter, all-gather, broadcast, all-to-all or barrier"
)]
pub struct UnknownCollective(pub String);

impl std::str::FromStr for Collective {
    type Err = UnknownCollective;

    fn from_str(text: &str) -> Result<Self, UnknownCollective> {
        let named = Self::ALL.into_iter().find(|known| known.as_str() == text);
        named.ok_or_else(|| UnknownCollective(text.to_owned()))
    }
}

/// What a way of doing a collective asks of the member that does most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Messages that follow each other.
    pub steps: f64,
    /// Bytes it sends, in units of the whole buffer.
    pub volume: f64,
}

impl Shape {
    /// One ring through `ranks` members: each sends (n − 1)/n of the buffer in each round, in n − 1
    /// steps.
    pub fn ring(collective: Collective, ranks: f64) -> Self {
        let rounds = collective.rounds();
        Self {
            steps: rounds * (ranks - 1.0),
            volume: rounds * (ranks - 1.0) / ranks,
        }
    }

    /// Halves exchanged over ever nearer partners, and back: as many bytes as a ring in log n steps
    /// a round. Members beyond a power of two send everything in first and get everything back.
    pub fn halving(collective: Collective, ranks: f64) -> Self {
        let rounds = collective.rounds();
        let whole = 2f64.powf(ranks.log2().floor());
        let beyond = if whole < ranks { 1.0 } else { 0.0 };
        Self {
            steps: rounds * (whole.log2() + beyond),
            volume: rounds * ((whole - 1.0) / whole + beyond),
        }
    }

    /// A binomial tree: log n steps a round, each with the whole buffer.
    pub fn tree(collective: Collective, ranks: f64) -> Self {
        let depth = ranks.log2().ceil();
        Self {
            steps: collective.rounds() * depth,
            volume: collective.rounds() * depth,
        }
    }

    /// Everyone to everyone at once: as many bytes as a ring in one step a round, each of which is a
    /// message to every other member.
    pub fn direct(collective: Collective, ranks: f64) -> Self {
        let rounds = collective.rounds();
        Self {
            steps: rounds * (1.0 + DIRECT_MESSAGE * (ranks - 2.0).max(0.0)),
            volume: rounds * (ranks - 1.0) / ranks,
        }
    }

    /// One after the other.
    #[must_use]
    pub fn then(self, next: Self) -> Self {
        Self {
            steps: self.steps + next.steps,
            volume: self.volume + next.volume,
        }
    }

    /// The time for `bytes`, with `latency` seconds a step and `rate` bytes per second.
    pub fn seconds(self, bytes: f64, latency: f64, rate: f64) -> f64 {
        self.steps * latency + self.volume * bytes / rate
    }
}

/// What a further message at the same time costs of a step. Assumed: posting is a fraction of what
/// the message takes to arrive.
const DIRECT_MESSAGE: f64 = 0.3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_and_a_halving_send_as_much_and_a_halving_takes_fewer_steps() {
        let ring = Shape::ring(Collective::AllReduce, 8.0);
        let halving = Shape::halving(Collective::AllReduce, 8.0);
        assert_eq!((ring.steps, ring.volume), (14.0, 1.75));
        assert_eq!((halving.steps, halving.volume), (6.0, 1.75));
    }

    #[test]
    fn members_beyond_a_power_of_two_cost_a_step_and_the_buffer_more_each_round() {
        let halving = Shape::halving(Collective::AllReduce, 6.0);
        assert_eq!((halving.steps, halving.volume), (6.0, 3.5));
    }

    #[test]
    fn a_tree_sends_the_buffer_once_a_step() {
        let tree = Shape::tree(Collective::Broadcast, 5.0);
        assert_eq!((tree.steps, tree.volume), (3.0, 3.0));
        assert_eq!(tree.seconds(1e9, 1e-3, 1e9), 3.0 + 3e-3);
    }

    #[test]
    fn two_members_have_one_message_a_round_whatever_the_way() {
        let ring = Shape::ring(Collective::AllReduce, 2.0);
        assert_eq!(ring, Shape::direct(Collective::AllReduce, 2.0));
        assert_eq!(ring, Shape::halving(Collective::AllReduce, 2.0));
    }

    #[test]
    fn each_has_a_word_that_reads_back() {
        for known in Collective::ALL {
            assert_eq!(known.as_str().parse(), Ok(known));
        }
        assert!("all-of-it".parse::<Collective>().is_err());
    }
}
