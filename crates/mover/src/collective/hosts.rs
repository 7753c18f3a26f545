//! Which ranks of a group share a host.

/// The ranks of each host, in order; hosts in the order of their first rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    hosts: Vec<Vec<usize>>,
    /// Host and place in it, for each rank.
    places: Vec<(usize, usize)>,
}

impl Hosts {
    /// From something that is the same for the ranks of one host and differs between hosts.
    pub fn of<K: PartialEq>(keys: &[K]) -> Self {
        let mut firsts: Vec<&K> = Vec::new();
        let mut hosts: Vec<Vec<usize>> = Vec::new();
        let mut places = Vec::with_capacity(keys.len());
        for (rank, key) in keys.iter().enumerate() {
            let host = firsts.iter().position(|known| *known == key);
            let host = host.unwrap_or_else(|| {
                firsts.push(key);
                hosts.push(Vec::new());
                hosts.len() - 1
            });
            if let Some(ranks) = hosts.get_mut(host) {
                places.push((host, ranks.len()));
                ranks.push(rank);
            }
        }
        Self { hosts, places }
    }

    /// How many hosts there are.
    pub fn len(&self) -> usize {
        self.hosts.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    /// The ranks on the host of a rank, and which of them it is.
    pub fn around(&self, rank: usize) -> (&[usize], usize) {
        let (host, place) = self.places.get(rank).copied().unwrap_or_default();
        (self.hosts.get(host).map_or(&[], Vec::as_slice), place)
    }

    /// Whether two ranks share a host.
    pub fn together(&self, one: usize, other: usize) -> bool {
        let host = |rank: usize| self.places.get(rank).map(|place| place.0);
        host(one).is_some() && host(one) == host(other)
    }

    /// The ranks at one place of every host; `None` when hosts differ in their number of ranks.
    pub fn across(&self, place: usize) -> Option<Vec<usize>> {
        let size = self.hosts.first()?.len();
        if self.hosts.iter().any(|ranks| ranks.len() != size) {
            return None;
        }
        let at = self.hosts.iter().map(|ranks| ranks.get(place).copied());
        at.collect()
    }

    /// The first rank of each host.
    pub fn leaders(&self) -> Vec<usize> {
        self.hosts
            .iter()
            .filter_map(|ranks| ranks.first().copied())
            .collect()
    }

    /// The most ranks that one host has.
    pub fn most(&self) -> usize {
        self.hosts.iter().map(Vec::len).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_a_host_are_found_wherever_they_stand() {
        let hosts = Hosts::of(&["a", "b", "a", "b"]);
        assert_eq!(hosts.len(), 2);
        assert_eq!(hosts.around(2), (&[0, 2][..], 1));
        assert_eq!(hosts.across(1), Some(vec![2, 3]));
        assert_eq!(hosts.leaders(), [0, 1]);
        assert!(hosts.together(1, 3) && !hosts.together(0, 1));
    }

    #[test]
    fn hosts_of_different_sizes_have_no_ranks_across() {
        let hosts = Hosts::of(&["a", "a", "b"]);
        assert_eq!(hosts.across(0), None);
        assert_eq!(hosts.most(), 2);
    }
}
