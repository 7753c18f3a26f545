//! What a finding costs: from the ceilings of the routes that it decides between, or why they do not
//! tell.
//!
//! A machine's own topology gives both ceilings by the route search. Elsewhere the line rate of the
//! NIC is what can be lost at most; how much of it a copy through host memory leaves depends on that
//! memory, which no paste shows.

use crowfly_route::hop::{Candidate, Class, Provenance};
use crowfly_route::obstacle::Cost;
use crowfly_route::place::Place;
use crowfly_route::search::candidates;
use crowfly_route::topology::Topology;
use crowfly_route::units::BytesPerSecond;

use crate::case::Case;
use crate::facts::rdma::ports;
use crate::finding::{Finding, Severity};
use crate::rule::Family;
use crate::verdict::{Pair, PairKind, Verdict};

/// Prices every finding that its rule left without a price.
pub(super) fn price(case: &Case, findings: &mut [Finding]) {
    let wire = line_rate(case);
    for finding in findings {
        if finding.cost.is_some() || !finding.cost_basis.is_empty() {
            continue;
        }
        let priced = by_routes(case, finding).unwrap_or_else(|| by_kind(finding, wire.as_ref()));
        (finding.cost, finding.cost_basis) = priced;
    }
}

type Price = (Option<Cost>, String);

/// What kind of way a finding bears on.
fn kind(finding: &Finding) -> Option<PairKind> {
    let of_family = match finding.family() {
        Some(Family::Nccl | Family::Rdma | Family::Cloud | Family::Amd) => Some(PairKind::GpuNic),
        Some(Family::Gds) => Some(PairKind::GpuDrive),
        _ => None,
    };
    finding
        .implies
        .map(|implied| implied.kind)
        .or_else(|| finding.pairs.first().map(|pair| pair.kind))
        .or(of_family)
}

/// Both ceilings of a pair that a finding names on a machine whose topology is known.
fn by_routes(case: &Case, finding: &Finding) -> Option<Price> {
    if finding.severity < Severity::Warning {
        return None;
    }
    let (machine, pair) = finding.pairs.iter().find_map(|pair| {
        let on = pair.on.as_deref()?;
        let machine = case.machines.iter().find(|m| m.source.as_str() == on)?;
        Some((machine, pair))
    })?;
    let (from, to) = ends(&machine.topology, pair)?;
    let found = candidates(&machine.topology, machine.snapshot.as_deref(), &from, &to).ok()?;
    let (direct, _) = best(&found, |class| class == Class::Direct)?;
    let (other, left) = best(&found, |class| class != Class::Direct)?;
    let what = format!(
        "ceilings of the routes {from} to {to} on {}: {}",
        machine.source, left
    );
    if other.0 < direct.0 {
        return Some((
            Some(Cost {
                now: other,
                without: direct,
            }),
            what,
        ));
    }
    Some((
        None,
        format!(
            "by its links the way through host memory carries {direct} as well; it costs passes through that memory instead, whose rate was not measured ({what})"
        ),
    ))
}

/// The places that a pair's names stand for.
fn ends(topology: &Topology, pair: &Pair) -> Option<(Place, Place)> {
    let number = |name: &str| name.strip_prefix("gpu")?.parse().ok();
    let from = Place::Gpu(number(&pair.gpu)?);
    let to = match pair.kind {
        PairKind::GpuGpu => Place::Gpu(number(&pair.other)?),
        PairKind::GpuNic => Place::Nic(pair.other.clone()),
        PairKind::GpuDrive => Place::Drive(pair.other.clone()),
        PairKind::GpuFileSystem => Place::File(pair.other.clone()),
    };
    (!topology.gpus.is_empty()).then_some((from, to))
}

/// The highest ceiling among the routes of a class, and where its figure is from.
fn best(found: &[Candidate], wanted: impl Fn(Class) -> bool) -> Option<(BytesPerSecond, String)> {
    found
        .iter()
        .filter(|candidate| wanted(candidate.route.class()))
        .filter_map(|candidate| {
            let ceiling = candidate.route.ceiling()?;
            let from: &Provenance = &ceiling.capacity.provenance;
            Some((ceiling.capacity.rate, from.word().to_owned()))
        })
        .max_by(|a, b| a.0.0.total_cmp(&b.0.0))
}

/// A NIC's line rate, and which it is.
struct Wire {
    rate: BytesPerSecond,
    of: String,
}

/// The line rate of the fastest NIC that the evidence shows.
fn line_rate(case: &Case) -> Option<Wire> {
    let of_ports = ports(case)
        .into_iter()
        .filter_map(|port| Some((port.rate_gbps?, port.name())));
    let of_files = case
        .nccl_topologies()
        .flat_map(|topology| &topology.nets)
        .filter_map(|net| Some((net.speed_mbps? as f64 / 1e3, net.name.clone())));
    of_ports
        .chain(of_files)
        .filter(|(gbps, _)| *gbps > 0.0)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(gbps, of)| Wire {
            rate: BytesPerSecond::gb(gbps / 8.0),
            of,
        })
}

fn by_kind(finding: &Finding, wire: Option<&Wire>) -> Price {
    let implied = finding.implies.map(|implied| implied.verdict);
    let words = match (finding.severity, kind(finding), wire) {
        (Severity::Note, ..) => "nothing is lost by it".to_owned(),
        (Severity::Broken, Some(PairKind::GpuNic), Some(wire)) => {
            let lost = Cost {
                now: BytesPerSecond(0.0),
                without: wire.rate,
            };
            return (Some(lost), format!("nothing arrives; line rate of {}", wire.of));
        }
        (Severity::Broken, ..) => {
            "nothing arrives, so all of the way's rate is lost; what that is, is not shown".to_owned()
        }
        (_, Some(PairKind::GpuNic), Some(wire)) if implied == Some(Verdict::Socket) => format!(
            "at most {}, the line rate of {}: what the kernel's network stack leaves of it depends on the CPU, which nobody measured",
            wire.rate, wire.of
        ),
        (_, Some(PairKind::GpuNic), Some(wire))
            if implied.is_none() && finding.family() == Some(Family::Rdma) =>
        {
            format!(
                "at most {}, the line rate of {}: how much of it is lost depends on the traffic, which is not shown",
                wire.rate, wire.of
            )
        }
        (_, Some(PairKind::GpuNic), Some(wire)) => format!(
            "at most {}, the line rate of {}: a copy through host memory at each end can come near it or halve it, depending on that memory's rate, which nobody measured",
            wire.rate, wire.of
        ),
        (_, Some(PairKind::GpuNic), None) => {
            "not told: neither the NIC's rate nor that of the host's memory is shown (ibstat and crowfly race show them)".to_owned()
        }
        (_, Some(PairKind::GpuGpu), _) => {
            "not told: neither the links between the GPUs nor the rate of the host's memory is shown (nvidia-smi nvlink -s and crowfly race show them)".to_owned()
        }
        (_, Some(PairKind::GpuDrive | PairKind::GpuFileSystem), _) => {
            "not told: a copy through host memory costs CPU time and memory rate, and neither the drive's rate nor the memory's is shown (crowfly race shows them)".to_owned()
        }
        (_, None, _) => {
            "not told: it depends on how often it strikes and on what, which this evidence does not show".to_owned()
        }
    };
    (None, words)
}
