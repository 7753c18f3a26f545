//! What each RDMA device of this machine really does when it is asked: a page registered and
//! released, relaxed ordering, dma-bufs. Nothing is left behind.

use std::sync::Arc;

use crowfly_route::obstacle::{Code, Obstacle};

use super::device::{Context, Verbs};
use super::error::VerbsError;
use super::memory::{Access, DmaBufSupport, Page, Pinned};
use super::registration::{self, register_host};

/// What a device answered to one question.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// It does.
    Yes,
    /// It does not, and why.
    No(Obstacle),
    /// What it answered says neither.
    Unknown(Obstacle),
}

/// What one device does.
#[derive(Clone, Debug, PartialEq)]
pub struct Probe {
    /// The device.
    pub nic: String,
    /// Its ports that can carry traffic now.
    pub active_ports: Vec<u8>,
    /// Whether the kernel plays it in software.
    pub software: bool,
    /// Whether it registers host memory.
    pub host_memory: Answer,
    /// Whether its writes may overtake each other.
    pub relaxed_ordering: Answer,
    /// Whether it registers dma-bufs, by which GPU memory is reached. That it would says nothing
    /// of a GPU: only a GPU's own memory can show whether the two reach each other.
    pub dma_buf: Answer,
}

/// Asks every device.
///
/// # Errors
/// When the library or the list of devices cannot be had.
pub fn probe(verbs: &Verbs) -> Result<Vec<Result<Probe, VerbsError>>, VerbsError> {
    let names = verbs.devices()?;
    Ok(names
        .iter()
        .map(|name| verbs.open(name).and_then(|context| ask(&context)))
        .collect())
}

fn ask(context: &Arc<Context>) -> Result<Probe, VerbsError> {
    let limits = context.limits()?;
    let mut active_ports = Vec::new();
    for port in 1..=limits.ports {
        if context.port(port)?.active {
            active_ports.push(port);
        }
    }
    let domain = context.protection_domain()?;
    let page: Arc<dyn Pinned> = Arc::new(Page::new());
    let (host_memory, relaxed_ordering) = match register_host(&domain, &page, Access::ALL) {
        Ok(done) => {
            let strict = |o: &Obstacle| o.code == Code::RelaxedOrderingOff;
            let relaxed = done.obstacles.into_iter().find(strict);
            (Answer::Yes, relaxed.map_or(Answer::Yes, Answer::No))
        }
        Err(mut obstacles) => {
            let why = obstacles.pop();
            let why = why.unwrap_or_else(|| {
                Obstacle::unproven(Code::RegistrationRefused, "no reason was given")
            });
            (Answer::No(why.clone()), Answer::Unknown(why))
        }
    };
    let refused = |error: &VerbsError| registration::dma_buf_refusal(context.name(), error);
    let dma_buf = match domain.takes_dma_bufs() {
        DmaBufSupport::Yes => Answer::Yes,
        DmaBufSupport::No(error) => Answer::No(refused(&error)),
        DmaBufSupport::Unknown(error) => Answer::Unknown(refused(&error)),
    };
    Ok(Probe {
        nic: context.name().to_owned(),
        active_ports,
        software: context.is_software(),
        host_memory,
        relaxed_ordering,
        dma_buf,
    })
}

#[cfg(test)]
mod tests {
    use super::super::fake::{Behaviour, FakeNic, Library};
    use super::*;

    fn asked(name: &str, behaviour: Behaviour) -> Probe {
        let nic = FakeNic::plug(name, behaviour);
        let context = nic.verbs().open(name).expect("it is plugged in");
        let probe = ask(&context).expect("it answers");
        assert_eq!(nic.regions(), 0, "nothing is left behind");
        probe
    }

    fn code(answer: &Answer) -> Option<Code> {
        match answer {
            Answer::Yes => None,
            Answer::No(obstacle) | Answer::Unknown(obstacle) => Some(obstacle.code),
        }
    }

    #[test]
    fn given_a_card_that_does_everything_every_answer_is_yes() {
        let probe = asked("probe_yes", Behaviour::default());
        assert_eq!(probe.active_ports, [1]);
        assert!(!probe.software);
        let answers = [&probe.host_memory, &probe.relaxed_ordering, &probe.dma_buf];
        assert!(
            answers.iter().all(|answer| **answer == Answer::Yes),
            "{probe:?}"
        );
    }

    #[test]
    fn given_refusals_each_answer_has_its_own_obstacle() {
        let probe = asked(
            "probe_no",
            Behaviour {
                relaxed: Some(libc::EOPNOTSUPP),
                dma_buf: Some(libc::EOPNOTSUPP),
                port_down: true,
                ..Behaviour::default()
            },
        );
        assert_eq!(probe.active_ports, [] as [u8; 0]);
        assert_eq!(probe.host_memory, Answer::Yes);
        assert_eq!(
            code(&probe.relaxed_ordering),
            Some(Code::RelaxedOrderingOff)
        );
        assert_eq!(code(&probe.dma_buf), Some(Code::NicWithoutDmaBuf));
        assert!(matches!(probe.dma_buf, Answer::No(_)));
    }

    #[test]
    fn given_an_answer_that_says_neither_it_is_unknown_and_no_refusal() {
        let probe = asked(
            "probe_unknown",
            Behaviour {
                register: Some(libc::EPERM),
                dma_buf: Some(libc::ENOMEM),
                ..Behaviour::default()
            },
        );
        assert_eq!(code(&probe.host_memory), Some(Code::RegistrationDenied));
        assert!(matches!(probe.host_memory, Answer::No(_)));
        assert!(matches!(probe.relaxed_ordering, Answer::Unknown(_)));
        assert!(matches!(probe.dma_buf, Answer::Unknown(_)));
    }

    #[test]
    fn given_an_old_library_the_answer_names_the_missing_function() {
        let nic = FakeNic::plug("probe_old", Behaviour::default());
        let old = Library {
            iova2: false,
            dma_buf: false,
            mlx5: true,
        };
        let probes = probe(&nic.verbs_of(old)).expect("devices");
        let probes: Vec<Probe> = probes.into_iter().filter_map(Result::ok).collect();
        let probe = probes
            .iter()
            .find(|p| p.nic == "probe_old")
            .expect("listed");
        assert_eq!(code(&probe.dma_buf), Some(Code::NoVerbsLibrary));
    }
}
