//! Which of how many processes this one is, as the launcher's environment says.

use std::fmt;

/// Who started the processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// PyTorch's torchrun.
    Torchrun,
    /// Open MPI's mpirun.
    OpenMpi,
    /// MPICH's or Intel MPI's mpirun (PMI).
    Pmi,
    /// Slurm's srun.
    Srun,
}

/// The variables of a launcher: rank, size, rank on the host.
const VARIABLES: [(Launcher, [&str; 3]); 4] = [
    (Launcher::Torchrun, ["RANK", "WORLD_SIZE", "LOCAL_RANK"]),
    (
        Launcher::OpenMpi,
        [
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK",
        ],
    ),
    (Launcher::Pmi, ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"]),
    (
        Launcher::Srun,
        ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"],
    ),
];

/// What of a job's name stands in front of its ranks' names.
const MAX_JOB: usize = 64;

/// Which of how many processes this one is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct World {
    /// Whose variables were found.
    pub launcher: Launcher,
    /// This process's number, from 0.
    pub rank: u32,
    /// How many processes there are.
    pub size: u32,
    /// This process's number on its host, where the launcher says.
    pub local_rank: Option<u32>,
    /// Which of the launcher's jobs this is, where the launcher says; of characters that names may have.
    pub job: Option<String>,
    /// Where rank 0 can be reached, as `host:port`, where the launcher says.
    pub master: Option<String>,
}

/// The launcher's variables contradict themselves or are no numbers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}={value} is not usable: {why}")]
pub struct BadWorld {
    /// The variable.
    pub variable: &'static str,
    /// What it says.
    pub value: String,
    /// What is wrong with it.
    pub why: &'static str,
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}", self.rank, self.size)
    }
}

impl World {
    /// What this process's environment says; `None` when no launcher's variables are set.
    ///
    /// # Errors
    /// [`BadWorld`] when they are set and make no sense: running alone by mistake would hang the
    /// others.
    pub fn from_environment() -> Result<Option<Self>, BadWorld> {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    /// The same of any variables.
    ///
    /// # Errors
    /// As [`World::from_environment`].
    pub fn from_variables(
        get: impl Fn(&'static str) -> Option<String>,
    ) -> Result<Option<Self>, BadWorld> {
        let number = |variable: &'static str| match get(variable) {
            None => Ok(None),
            Some(value) => value.trim().parse::<u32>().map(Some).map_err(|_| BadWorld {
                variable,
                value,
                why: "it is no number",
            }),
        };
        for (launcher, [rank_at, size_at, local_at]) in VARIABLES {
            let (Some(rank), Some(size)) = (number(rank_at)?, number(size_at)?) else {
                continue;
            };
            if rank >= size {
                return Err(BadWorld {
                    variable: rank_at,
                    value: rank.to_string(),
                    why: "ranks count from 0 and stay below the number of processes",
                });
            }
            let master = match launcher {
                Launcher::Torchrun => get("MASTER_ADDR").zip(get("MASTER_PORT")),
                _ => None,
            };
            let variables = job_variables(launcher);
            let job = variables.iter().find_map(|name| get(name));
            return Ok(Some(Self {
                job: job.as_deref().and_then(plain),
                launcher,
                rank,
                size,
                local_rank: number(local_at)?,
                master: master.map(|(host, port)| format!("{host}:{port}")),
            }));
        }
        Ok(None)
    }

    /// The name under which a rank of this job is found.
    pub fn entry(&self, rank: u32) -> String {
        match &self.job {
            Some(job) => Self::name_of(job, rank),
            None => format!("rank{rank}"),
        }
    }

    /// The name under which a rank of a job announces itself.
    pub fn name_of(job: &str, rank: u32) -> String {
        format!("{job}.rank{rank}")
    }
}

/// The variables that tell jobs of a launcher apart, the first that is set.
const fn job_variables(launcher: Launcher) -> &'static [&'static str] {
    match launcher {
        Launcher::Torchrun => &["TORCHELASTIC_RUN_ID"],
        Launcher::OpenMpi => &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "SLURM_JOB_ID"],
        Launcher::Pmi | Launcher::Srun => &["SLURM_JOB_ID"],
    }
}

/// A job's name as far as names of entries have its characters.
fn plain(job: &str) -> Option<String> {
    let fine = |c: char| match c {
        c if c.is_ascii_alphanumeric() || matches!(c, '-' | '_') => c,
        _ => '-',
    };
    let job: String = job.trim().chars().take(MAX_JOB).map(fine).collect();
    (!job.is_empty()).then_some(job)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world(set: &[(&str, &str)]) -> Result<Option<World>, BadWorld> {
        let get = |name: &str| {
            let known = set.iter().find(|(known, _)| *known == name);
            known.map(|(_, value)| (*value).to_owned())
        };
        World::from_variables(get)
    }

    #[test]
    fn each_launchers_variables_say_the_same() {
        let sets = [
            (Launcher::Torchrun, ["RANK", "WORLD_SIZE", "LOCAL_RANK"]),
            (
                Launcher::OpenMpi,
                [
                    "OMPI_COMM_WORLD_RANK",
                    "OMPI_COMM_WORLD_SIZE",
                    "OMPI_COMM_WORLD_LOCAL_RANK",
                ],
            ),
            (
                Launcher::Srun,
                ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"],
            ),
        ];
        for (launcher, [rank, size, local]) in sets {
            let found = world(&[(rank, "5"), (size, "8"), (local, "1")]);
            let found = found.expect("sensible").expect("set");
            assert_eq!((found.launcher, found.rank, found.size), (launcher, 5, 8));
            assert_eq!(found.local_rank, Some(1));
        }
        assert_eq!(world(&[]), Ok(None));
        assert_eq!(
            world(&[("RANK", "0")]),
            Ok(None),
            "half of it is none of it"
        );
    }

    #[test]
    fn ranks_of_a_job_are_named_by_it_where_the_launcher_says_which_it_is() {
        let entry = |more: &[(&str, &str)]| {
            let set = [&[("SLURM_PROCID", "1"), ("SLURM_NTASKS", "2")], more].concat();
            world(&set).expect("sensible").expect("set").entry(3)
        };
        assert_eq!(entry(&[]), "rank3");
        assert_eq!(entry(&[("SLURM_JOB_ID", "12@h")]), "12-h.rank3");
    }

    #[test]
    fn torchrun_says_where_rank_0_is() {
        let set = [
            ("RANK", "1"),
            ("WORLD_SIZE", "2"),
            ("MASTER_ADDR", "n1"),
            ("MASTER_PORT", "29500"),
        ];
        let found = world(&set).expect("sensible").expect("set");
        assert_eq!(found.master.as_deref(), Some("n1:29500"));
    }

    #[test]
    fn what_makes_no_sense_is_an_error_that_names_the_variable() {
        let error = world(&[("RANK", "x"), ("WORLD_SIZE", "2")]).expect_err("no number");
        assert_eq!((error.variable, error.value.as_str()), ("RANK", "x"));
        let error = world(&[("RANK", "2"), ("WORLD_SIZE", "2")]).expect_err("too large");
        assert_eq!(error.variable, "RANK");
    }
}
