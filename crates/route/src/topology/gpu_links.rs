//! Joining what each GPU says of its own links into links between pairs.

use std::collections::BTreeMap;

use super::{GpuLink, GpuLinkKind, Oddity};
use crate::units::BytesPerSecond;

/// The most GPUs whose pairs are looked at. One machine has 16, a rack-wide NVLink domain 72.
const MAX_GPUS: usize = 1024;

/// The links of one GPU: into NVSwitches, and straight to other GPUs by their index.
#[derive(Default)]
pub(super) struct LinkEnds {
    to_switches: u32,
    to_gpus: BTreeMap<u32, (GpuLinkKind, u32)>,
}

impl LinkEnds {
    /// Adds links into NVSwitches.
    pub(super) fn add_switch_links(&mut self, count: u32) {
        self.to_switches = self.to_switches.saturating_add(count);
    }

    /// Adds links straight to another GPU.
    pub(super) fn add_gpu_links(&mut self, gpu: u32, kind: GpuLinkKind, count: u32) {
        let (_, sum) = self.to_gpus.entry(gpu).or_insert((kind, 0));
        *sum = sum.saturating_add(count);
    }
}

/// The links of every pair. `rate_of_one` is the rate of one link of this kind at this GPU.
pub(super) fn join(
    ends: &BTreeMap<u32, LinkEnds>,
    rate_of_one: impl Fn(u32, GpuLinkKind) -> Option<BytesPerSecond>,
    oddities: &mut Vec<Oddity>,
) -> Vec<GpuLink> {
    if ends.len() > MAX_GPUS {
        let what = format!("links of more than {MAX_GPUS} GPUs are left out");
        oddities.push(Oddity::new("GPU links", what));
        return Vec::new();
    }
    let mut links = Vec::new();
    for (a, a_ends) in ends {
        for (b, b_ends) in ends.range(a + 1..) {
            let (there, back) = (a_ends.to_gpus.get(b), b_ends.to_gpus.get(a));
            // Each end counts its links; where one could not be asked, the other's word stands.
            let straight = there.into_iter().chain(back).map(|(_, count)| *count).max();
            let switched = a_ends.to_switches.min(b_ends.to_switches);
            let count = straight.unwrap_or(0).saturating_add(switched);
            let kind = there
                .or(back)
                .map_or(GpuLinkKind::NvLink, |(kind, _)| *kind);
            if count > 0 {
                links.push(GpuLink {
                    a: *a,
                    b: *b,
                    kind,
                    count,
                    rate: rate_of_one(*a, kind).map(|one| BytesPerSecond(one.0 * f64::from(count))),
                });
            }
        }
    }
    links
}

/// Rate of one NVLink in one direction, by compute capability: NVLink 1 to 5 as NVIDIA publishes
/// them for each architecture (GA10x has slower lanes than GA100); `None` where it has none.
pub(super) fn nvlink_rate(compute_capability: &str) -> Option<BytesPerSecond> {
    let gigabytes = match compute_capability {
        "6.0" => 20.0,
        "7.0" | "7.2" | "7.5" | "8.0" | "9.0" => 25.0,
        "8.6" => 14.0625,
        "10.0" | "10.3" => 50.0,
        _ => return None,
    };
    Some(BytesPerSecond::gb(gigabytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(a: LinkEnds, b: LinkEnds) -> Vec<(u32, Option<f64>)> {
        let ends = BTreeMap::from([(0, a), (1, b)]);
        let rate = |_, _| nvlink_rate("9.0");
        let links = join(&ends, rate, &mut Vec::new());
        let shown = |link: &GpuLink| (link.count, link.rate.map(BytesPerSecond::as_gb));
        links.iter().map(shown).collect()
    }

    fn straight(to: u32, count: u32) -> LinkEnds {
        let mut ends = LinkEnds::default();
        ends.add_gpu_links(to, GpuLinkKind::NvLink, count);
        ends
    }

    fn switched(count: u32) -> LinkEnds {
        let mut ends = LinkEnds::default();
        ends.add_switch_links(count);
        ends
    }

    #[test]
    fn through_switches_a_pair_has_as_many_links_as_the_end_with_fewer() {
        assert_eq!(pair(switched(18), switched(17)), [(17, Some(425.0))]);
        assert_eq!(pair(switched(18), LinkEnds::default()), []);
    }

    #[test]
    fn straight_links_count_once_although_both_ends_tell_of_them() {
        assert_eq!(pair(straight(1, 4), straight(0, 4)), [(4, Some(100.0))]);
        assert_eq!(
            pair(straight(1, 4), LinkEnds::default()),
            [(4, Some(100.0))]
        );
    }
}
