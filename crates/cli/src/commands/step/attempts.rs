//! Launchers that start all ranks again once one has failed: torchrun with `--max-restarts`, and
//! Slurm where it requeues a job.

use crowfly_mover::fabric::rendezvous::{Launcher, World};
use crowfly_mover::step::MAX_LOSSES;

/// How often the launcher has started the ranks before, and how often it will at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempts {
    /// 0 for the first time.
    pub before: u32,
    /// Whether all ranks are started again when one fails now.
    pub again: bool,
}

impl Attempts {
    /// What the environment says.
    pub fn of(world: &World) -> Self {
        Self::from_variables(world.launcher, |name| std::env::var(name).ok())
    }

    fn from_variables(launcher: Launcher, get: impl Fn(&'static str) -> Option<String>) -> Self {
        let number = |name| get(name).and_then(|text| text.trim().parse::<u32>().ok());
        let (before, most) = match launcher {
            Launcher::Torchrun => (
                number("TORCHELASTIC_RESTART_COUNT"),
                number("TORCHELASTIC_MAX_RESTARTS"),
            ),
            // Slurm does not say whether it will requeue a job, only that it did.
            Launcher::Srun => (number("SLURM_RESTART_COUNT"), None),
            Launcher::OpenMpi | Launcher::Pmi => (None, None),
        };
        let before = before.unwrap_or(0);
        Self {
            before,
            again: before < MAX_LOSSES && most.is_some_and(|most| before < most),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(launcher: Launcher, set: &[(&str, &str)]) -> Attempts {
        Attempts::from_variables(launcher, |name| {
            let known = set.iter().find(|(known, _)| *known == name);
            known.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn torchrun_says_how_often_it_started_the_ranks_and_how_often_it_will() {
        let torchrun = |count, most| {
            let set = [
                ("TORCHELASTIC_RESTART_COUNT", count),
                ("TORCHELASTIC_MAX_RESTARTS", most),
            ];
            let Attempts { before, again } = of(Launcher::Torchrun, &set);
            (before, again)
        };
        assert_eq!(torchrun("0", "0"), (0, false));
        assert_eq!(torchrun("0", "3"), (0, true));
        assert_eq!(torchrun("3", "3"), (3, false));
        assert_eq!(torchrun("8", "100"), (8, false), "a run is given up then");
    }

    #[test]
    fn slurm_says_that_it_requeued_and_mpirun_starts_nothing_again() {
        let set = [
            ("SLURM_RESTART_COUNT", "2"),
            ("TORCHELASTIC_RESTART_COUNT", "1"),
        ];
        let slurm = of(Launcher::Srun, &set);
        assert_eq!((slurm.before, slurm.again), (2, false));
        assert_eq!(of(Launcher::OpenMpi, &set), Attempts::default());
        assert_eq!(of(Launcher::Torchrun, &[]), Attempts::default());
    }
}
