//! Which of the NICs there are to use: a function of what is known of them.

use crowfly_route::obstacle::{Code, Fix, Obstacle};
use crowfly_route::receipt::Path;

use super::filter::NicFilter;
use crate::fabric::error::FabricError;

/// A NIC slower than this part of the fastest of its path is there for something else, such as the
/// management of the machine: bytes sent by it would be waited for. Assumed.
const ODD: f64 = 0.5;

/// What stands behind a NIC's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A device, or several in one such as a bond.
    Card,
    /// An RDMA device that the kernel plays in software.
    Software,
    /// An interface that does not leave the host.
    Loopback,
    /// An interface that software made, in its own words: `bridge`.
    Virtual(String),
}

/// A NIC and what is known of it.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub path: Path,
    pub name: String,
    /// Why nothing can go by it, if nothing can.
    pub down: Option<&'static str>,
    /// Bytes per second.
    pub rate: Option<f64>,
    pub kind: Kind,
    pub virtual_function: bool,
}

impl Candidate {
    /// Whether it is what a machine has for its data.
    fn is_card(&self) -> bool {
        self.down.is_none() && self.kind == Kind::Card
    }
}

/// For each candidate whether to use it, or why not.
///
/// # Errors
/// When the filter has a name that fits none, or one that cannot be used.
pub(super) fn sift(
    candidates: &[Candidate],
    filter: &NicFilter,
) -> Result<Vec<Result<(), Obstacle>>, FabricError> {
    let names: Vec<&str> = candidates.iter().map(|c| c.name.as_str()).collect();
    filter.check(&names)?;
    let verdict = |candidate: &Candidate| match filter.says(&candidate.name) {
        Some(true) => match candidate.down {
            Some(why) => Err(FabricError::NicNotUsable {
                name: candidate.name.clone(),
                why,
            }),
            None => Ok(Ok(())),
        },
        Some(false) => Ok(Err(ruled_out(candidate, filter))),
        None => {
            let allowed = |other: &&Candidate| {
                other.path == candidate.path && filter.says(&other.name) != Some(false)
            };
            let others: Vec<&Candidate> = candidates.iter().filter(allowed).collect();
            Ok(fit(candidate, &others))
        }
    };
    candidates.iter().map(verdict).collect()
}

/// Whether a candidate is fit to carry data beside the others of its path.
fn fit(candidate: &Candidate, others: &[&Candidate]) -> Result<(), Obstacle> {
    let (path, name) = (candidate.path, &candidate.name);
    let left_out = |code, why: String| Obstacle::blocks(code, format!("{path} of {name}: {why}"));
    let at = format!("{path}:{name}");
    let ask = Fix::by_hand(format!("Ask for it by name: {name}."));
    if let Some(why) = candidate.down {
        return Err(left_out(Code::PortDown, why.to_owned())
            .seen(at, why)
            .fixed_by(Fix::by_hand("Bring it up, and give it an address.")));
    }
    let cards = others.iter().any(|other| other.is_card());
    match &candidate.kind {
        Kind::Loopback => {
            let why = "it does not leave the host".to_owned();
            return Err(left_out(Code::VirtualInterface, why).seen(at, "loopback"));
        }
        Kind::Virtual(what) if cards => {
            let why = format!("it is made by software ({what}), and the machine has cards");
            let obstacle = left_out(Code::VirtualInterface, why);
            return Err(obstacle.seen(at, what.as_str()).fixed_by(ask));
        }
        Kind::Software if cards => {
            let why = "the kernel plays it, and the machine has cards".to_owned();
            return Err(left_out(Code::SoftwareNic, why)
                .seen(at, "no device")
                .fixed_by(ask));
        }
        _ => {}
    }
    let whole = others.iter().any(|o| o.is_card() && !o.virtual_function);
    if candidate.virtual_function && whole {
        let why = "it is a virtual function, made for a guest of this machine".to_owned();
        return Err(left_out(Code::VirtualFunction, why)
            .seen(at, "physfn")
            .fixed_by(ask));
    }
    let usable = others.iter().filter(|o| o.down.is_none());
    let fastest = usable
        .filter_map(|other| Some((other.rate?, &other.name)))
        .max_by(|a, b| a.0.total_cmp(&b.0));
    if let (Some(rate), Some((most, fastest))) = (candidate.rate, fastest)
        && rate < ODD * most
    {
        let gigabits = |rate: f64| rate * 8.0 / 1e9;
        let why = format!(
            "{} Gb/s, far below the {} Gb/s of {fastest}",
            gigabits(rate),
            gigabits(most)
        );
        return Err(left_out(Code::OddRate, why.clone())
            .seen(at, why)
            .fixed_by(ask));
    }
    Ok(())
}

fn ruled_out(candidate: &Candidate, filter: &NicFilter) -> Obstacle {
    let (path, name) = (candidate.path, &candidate.name);
    Obstacle::blocks(
        Code::AskedFor,
        format!("the NICs `{filter}` were asked for, which rules out {path} of {name}"),
    )
    .seen("nics", filter.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(name: &str, gigabits: f64) -> Candidate {
        Candidate {
            path: Path::Verbs,
            name: name.into(),
            down: None,
            rate: Some(gigabits * 1e9 / 8.0),
            kind: Kind::Card,
            virtual_function: false,
        }
    }

    fn interface(name: &str, kind: Kind) -> Candidate {
        Candidate {
            path: Path::Tcp,
            rate: None,
            kind,
            ..card(name, 0.0)
        }
    }

    fn codes(candidates: &[Candidate], filter: &str) -> Vec<&'static str> {
        let filter = match filter {
            "" => NicFilter::default(),
            text => text.parse().expect("a filter"),
        };
        let verdicts = sift(candidates, &filter).expect("all names exist");
        let code = |verdict: &Result<(), Obstacle>| match verdict {
            Ok(()) => "used",
            Err(obstacle) => {
                assert!(!obstacle.evidence.is_empty(), "{obstacle:?}");
                obstacle.code.as_str()
            }
        };
        verdicts.iter().map(code).collect()
    }

    #[test]
    fn given_ports_that_are_down_slow_or_a_guests_then_only_the_others_are_used() {
        let machine = [
            card("mlx5_0:1", 400.0),
            card("mlx5_1:1", 200.0),
            card("mlx5_2:1", 100.0),
            Candidate {
                virtual_function: true,
                ..card("mlx5_3:1", 400.0)
            },
            Candidate {
                down: Some("it is down"),
                ..card("mlx5_4:1", 400.0)
            },
            Candidate {
                kind: Kind::Software,
                rate: None,
                ..card("rxe0:1", 0.0)
            },
        ];
        let expected = [
            "used",
            "used",
            "odd-rate",
            "virtual-function",
            "port-down",
            "software-nic",
        ];
        assert_eq!(codes(&machine, ""), expected);
    }

    #[test]
    fn given_a_guest_that_has_nothing_but_virtual_functions_then_they_are_used() {
        let guest = |name| Candidate {
            virtual_function: true,
            ..card(name, 100.0)
        };
        assert_eq!(
            codes(&[guest("mlx5_0:1"), guest("mlx5_1:1")], ""),
            ["used"; 2]
        );
    }

    #[test]
    fn given_bridges_beside_cards_then_the_cards_are_used_and_bridges_where_there_are_none() {
        let bridge = || interface("docker0", Kind::Virtual("bridge".into()));
        let (lo, eth) = (
            interface("lo", Kind::Loopback),
            interface("eth0", Kind::Card),
        );
        let both = [lo.clone(), bridge(), eth];
        assert_eq!(
            codes(&both, ""),
            ["virtual-interface", "virtual-interface", "used"]
        );
        assert_eq!(codes(&[lo, bridge()], ""), ["virtual-interface", "used"]);
    }

    #[test]
    fn a_slow_nic_of_another_path_is_no_odd_one() {
        let mixed = [
            card("mlx5_0:1", 400.0),
            Candidate {
                rate: Some(1.25e9),
                ..interface("eth0", Kind::Card)
            },
        ];
        assert_eq!(codes(&mixed, ""), ["used", "used"]);
    }

    #[test]
    fn what_is_asked_for_is_used_whatever_it_is_and_nothing_else() {
        let machine = [
            card("mlx5_0:1", 400.0),
            card("mlx5_2:1", 100.0),
            interface("docker0", Kind::Virtual("bridge".into())),
            interface("eth0", Kind::Card),
        ];
        let asked = codes(&machine, "mlx5_2,docker0");
        assert_eq!(asked, ["asked-for", "used", "used", "asked-for"]);
        // Without the fast card the slow one is odd no more.
        let but = codes(&machine, "^mlx5_0,eth0");
        assert_eq!(but, ["asked-for", "used", "used", "asked-for"]);
    }

    #[test]
    fn asking_for_a_nic_that_is_down_is_an_error_and_no_detour() {
        let down = Candidate {
            down: Some("it is down"),
            ..interface("eth1", Kind::Card)
        };
        let machine = [down, interface("eth0", Kind::Card)];
        let error = sift(&machine, &NicFilter::only("eth1")).expect_err("it is down");
        assert_eq!(error.code(), "nic-not-usable");
        assert!(error.to_string().contains("eth1"), "{error}");
        assert!(sift(&machine, &NicFilter::only("eth2")).is_err());
    }
}
