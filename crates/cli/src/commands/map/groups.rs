//! Devices that are equally far from everything else, so that a matrix fits on a screen.

use std::fmt;

use crowfly_route::topology::{Device, Relation, Topology};

/// Devices with the same distance by PCIe to every device outside, and one among each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// In the order of the topology.
    pub devices: Vec<Device>,
    /// What lies between its devices; [`Relation::Same`] of a single one.
    pub within: Relation,
}

/// Groups, and what lies between them by PCIe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grouped {
    /// In the order of their first devices.
    pub groups: Vec<Group>,
    /// One row a group.
    pub between: Vec<Vec<Relation>>,
}

/// Puts devices that are in the same place together.
///
/// Two devices are, when every third one is equally far from both. This relation is transitive,
/// so each device belongs to one group: let x and y be in the same place with r between them, and
/// x and z with s; then y–z is r seen from z's side and s seen from y's, so r = s, and whatever is
/// far from x is as far from y and z.
pub fn group(topology: &Topology, devices: &[Device]) -> Grouped {
    let rows = relations(topology, devices);
    let mut members: Vec<Vec<usize>> = Vec::new();
    for device in 0..devices.len() {
        let group = members.iter_mut().find(|group| {
            let first = group.first().copied().unwrap_or_default();
            same_place(&rows, first, device)
        });
        match group {
            Some(group) => group.push(device),
            None => members.push(vec![device]),
        }
    }
    // Of equals, any pair tells.
    grouped(&rows, &members, devices)
}

/// Puts all devices below one switch together, whatever lies between them; what is told of a
/// group is its farthest pair. `None` where the pairs between two groups differ.
pub fn cluster(topology: &Topology, devices: &[Device]) -> Option<Grouped> {
    let rows = relations(topology, devices);
    let near = |a: usize, b: usize| a == b || at(&rows, a, b) <= Relation::Pxb;
    let mut members: Vec<Vec<usize>> = Vec::new();
    for device in 0..devices.len() {
        // Below one switch is transitive: the first of a group tells.
        let group = members
            .iter_mut()
            .find(|group| group.first().is_some_and(|first| near(*first, device)));
        match group {
            Some(group) => group.push(device),
            None => members.push(vec![device]),
        }
    }
    let uniform = |a: &Vec<usize>, b: &Vec<usize>| {
        let mut pairs = a.iter().flat_map(|a| b.iter().map(|b| at(&rows, *a, *b)));
        let first = pairs.next();
        a == b || pairs.all(|relation| Some(relation) == first)
    };
    members
        .iter()
        .all(|a| members.iter().all(|b| uniform(a, b)))
        .then(|| grouped(&rows, &members, devices))
}

type Rows = Vec<Vec<Relation>>;

fn relations(topology: &Topology, devices: &[Device]) -> Rows {
    let row = |a: &Device| {
        let relation = |b: &Device| topology.pcie_distance(*a, *b).relation;
        devices.iter().map(relation).collect()
    };
    devices.iter().map(row).collect()
}

fn at(rows: &Rows, row: usize, column: usize) -> Relation {
    let relation = rows.get(row).and_then(|row| row.get(column));
    relation.copied().unwrap_or(Relation::Unknown)
}

fn grouped(rows: &Rows, members: &[Vec<usize>], devices: &[Device]) -> Grouped {
    let farthest = |a: &Vec<usize>, b: &Vec<usize>| {
        let pairs = a.iter().flat_map(|a| b.iter().map(move |b| (*a, *b)));
        let apart = pairs.filter(|(a, b)| a != b);
        let relations = apart.map(|(a, b)| at(rows, a, b));
        relations.max().unwrap_or(Relation::Same)
    };
    let between = |row| members.iter().map(|column| farthest(row, column)).collect();
    Grouped {
        between: members.iter().map(between).collect(),
        groups: members
            .iter()
            .map(|group| Group {
                devices: group
                    .iter()
                    .filter_map(|i| devices.get(*i).copied())
                    .collect(),
                within: farthest(group, group),
            })
            .collect(),
    }
}

fn same_place(rows: &Rows, a: usize, b: usize) -> bool {
    let (Some(a_row), Some(b_row)) = (rows.get(a), rows.get(b)) else {
        return false;
    };
    // What is unknown is not known to be the same.
    a_row.get(b) != Some(&Relation::Unknown)
        && a_row
            .iter()
            .zip(b_row)
            .enumerate()
            .all(|(third, (to_a, to_b))| third == a || third == b || to_a == to_b)
}

/// Names with numbers that follow each other drawn together: `gpu0–3, mlx5_0, nvme1`.
pub fn names(names: &[String]) -> String {
    let mut runs: Vec<Run<'_>> = Vec::new();
    for name in names {
        let next = Run::of(name);
        match (runs.last_mut(), &next) {
            (Some(run), Run::Numbers { stem, first, .. }) if run.continues_with(stem, *first) => {
                run.grow();
            }
            _ => runs.push(next),
        }
    }
    let shown: Vec<String> = runs.iter().map(Run::to_string).collect();
    shown.join(", ")
}

enum Run<'a> {
    Numbers {
        stem: &'a str,
        first: u64,
        last: u64,
    },
    Alone(&'a str),
}

impl<'a> Run<'a> {
    fn of(name: &'a str) -> Self {
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let digits = name.get(stem.len()..).unwrap_or_default();
        match digits.parse::<u64>() {
            // An address ends in digits too, but several are no range; `eth07` would lose its zero.
            Ok(number) if !stem.contains(':') && number.to_string() == digits => Self::Numbers {
                stem,
                first: number,
                last: number,
            },
            _ => Self::Alone(name),
        }
    }

    fn continues_with(&self, next_stem: &str, next: u64) -> bool {
        match self {
            Self::Numbers { stem, last, .. } => {
                *stem == next_stem && last.checked_add(1) == Some(next)
            }
            Self::Alone(_) => false,
        }
    }

    fn grow(&mut self) {
        if let Self::Numbers { last, .. } = self {
            *last = last.saturating_add(1);
        }
    }
}

impl fmt::Display for Run<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Alone(name) => f.write_str(name),
            Self::Numbers { stem, first, last } if first == last => write!(f, "{stem}{first}"),
            Self::Numbers { stem, first, last } => write!(f, "{stem}{first}–{last}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use crowfly_route::fixture::{Fixture, GpuModel, NicModel, gen5, machines};

    use super::*;

    fn shown(machine: &Fixture) -> Vec<String> {
        let topology = machine.topology();
        let devices: Vec<Device> = topology.devices().collect();
        let grouped = group(&topology, &devices);
        let groups = grouped.groups.iter();
        groups
            .map(|group| {
                let all: Vec<String> = group.devices.iter().map(|d| topology.name_of(*d)).collect();
                format!("{} {}", names(&all), group.within)
            })
            .collect()
    }

    #[test]
    fn devices_behind_one_switch_are_one_group() {
        let expected = ["gpu0–1, mlx5_0, nvme0 PIX", "gpu2–3 NODE"];
        assert_eq!(shown(&machines::pcie_box()), expected);
        let dgx = shown(&machines::dgx_h100());
        assert_eq!(dgx.len(), 9);
        assert_eq!(dgx[0], "gpu0, mlx5_0, nvme0 PIX");
        assert_eq!(dgx[8], "eno1, nvme8 PHB");
    }

    #[test]
    fn the_matrix_of_groups_says_what_every_pair_of_their_devices_has() {
        let topology = machines::dgx_h100().topology();
        let devices: Vec<Device> = topology.devices().collect();
        let grouped = group(&topology, &devices);
        for (row, a_group) in grouped.groups.iter().enumerate() {
            for (column, b_group) in grouped.groups.iter().enumerate() {
                for a in &a_group.devices {
                    for b in b_group.devices.iter().filter(|b| *b != a) {
                        let relation = topology.pcie_distance(*a, *b).relation;
                        assert_eq!(grouped.between[row][column], relation);
                    }
                }
            }
        }
    }

    #[test]
    fn devices_behind_nested_switches_are_one_cluster_and_the_farthest_pair_counts() {
        let mut machine = Fixture::new();
        let socket = machine.socket();
        for number in 0..2 {
            let port = machine.root_port(socket, gen5(16));
            let outer = machine.switch(port, gen5(16));
            let slot = machine.slot(outer, gen5(16));
            machine.gpu(slot, &GpuModel::H100);
            let slot = machine.slot(outer, gen5(16));
            let inner = machine.switch(slot, gen5(16));
            for nic in [2 * number, 2 * number + 1] {
                let slot = machine.slot(inner, gen5(16));
                machine.nic(slot, &format!("mlx5_{nic}"), &NicModel::CONNECTX7);
            }
        }
        let topology = machine.topology();
        let devices: Vec<Device> = topology.devices().collect();
        assert_eq!(group(&topology, &devices).groups.len(), 4);
        let clusters = cluster(&topology, &devices).expect("uniform");
        assert_eq!(clusters.groups.len(), 2);
        let (pxb, node) = (Relation::Pxb, Relation::Node);
        assert_eq!(clusters.between, [[pxb, node], [node, pxb]]);
    }

    #[test]
    fn what_is_unknown_is_not_taken_for_the_same() {
        let mut machine = machines::pcie_box();
        for name in ["rxe0", "rxe1"] {
            machine.link(
                format!("/sys/class/infiniband/{name}"),
                format!("../../devices/virtual/infiniband/{name}"),
            );
        }
        let groups = shown(&machine);
        assert!(groups.contains(&"rxe0 X".to_owned()), "{groups:?}");
        assert!(groups.contains(&"rxe1 X".to_owned()), "{groups:?}");
    }

    #[test]
    fn names_in_a_row_are_drawn_together_and_addresses_are_not() {
        let all = |list: &[&str]| {
            let list: Vec<String> = list.iter().map(|n| (*n).to_owned()).collect();
            names(&list)
        };
        assert_eq!(all(&["gpu0", "gpu1", "gpu2", "gpu4"]), "gpu0–2, gpu4");
        assert_eq!(all(&["mlx5_9", "mlx5_10", "ib0"]), "mlx5_9–10, ib0");
        assert_eq!(all(&["eth07", "eth08"]), "eth07, eth08");
        assert_eq!(
            all(&["0000:01:00.0", "0000:01:00.1"]),
            "0000:01:00.0, 0000:01:00.1"
        );
        assert_eq!(
            all(&["lo", "sda", "x18446744073709551615"]),
            "lo, sda, x18446744073709551615"
        );
    }
}
