//! Lines about GPUDirect RDMA of one GPU and one NIC, or of one NIC.

use super::distance::{LimitRule, Reach};
use super::{GdrNic, GdrPair};

/// What a line about GPUDirect RDMA says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum GdrLine {
    Pair(GdrPair),
    Nic(GdrNic),
}

impl GdrLine {
    /// Reads all the forms since 2.4:
    ///
    /// - `GPU Direct RDMA Enabled for GPU 13 / HCA d (distance 3 <= 4), read 0`
    /// - `GPU Direct RDMA Disabled for GPU/0-1 (rank 0) - NET/0-1 (distance 8 > 6)`
    /// - `NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0' (no module)`
    /// - `NET/IB : GPU Direct RDMA (DMABUF) enabled for HCA 5 'mlx5_8`
    /// - `NET/IB : GPU Direct RDMA Disabled for GPU 0[0] / HCA 0 'mlx5_0' (no module …)`
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (_, rest) = text.split_once("GPU Direct RDMA ")?;
        let (method, rest) = match rest.strip_prefix('(') {
            Some(inside) => {
                let (method, rest) = inside.split_once(") ")?;
                (Some(method.to_owned()), rest)
            }
            None => (None, rest),
        };
        let (state, rest) = rest.split_once(" for ")?;
        let enabled = match state {
            "Enabled" | "enabled" => true,
            "Disabled" | "disabled" => false,
            _ => return None,
        };
        match rest.split_once("distance ") {
            Some((devices, reach)) => pair(enabled, devices, reach).map(Self::Pair),
            None => nic(enabled, method, rest).map(Self::Nic),
        }
    }
}

fn pair(enabled: bool, devices: &str, reach: &str) -> Option<GdrPair> {
    let (gpu, nic) = match devices.split_once(" / HCA ") {
        Some((gpu, nic)) => (gpu.strip_prefix("GPU ")?, nic),
        None => devices.strip_prefix("GPU/")?.split_once(" - NET/")?,
    };
    let nic = nic.split([' ', '(']).next()?;
    Some(GdrPair {
        enabled,
        gpu: gpu.trim().to_owned(),
        nic: nic.to_owned(),
        reach: read_reach(reach)?,
        read: reach
            .split_once("read ")
            .and_then(|(_, t)| match t.bytes().next() {
                Some(b'0') => Some(false),
                Some(b'1') => Some(true),
                _ => None,
            }),
    })
}

/// Reads `3 <= 4), read 0`.
fn read_reach(text: &str) -> Option<Reach> {
    let mut words = text.split_whitespace();
    let distance = words.next()?.parse().ok()?;
    let sign = words.next()?;
    let limit = words.next()?;
    let digits = limit.bytes().take_while(u8::is_ascii_digit).count();
    // A number that the line's end cut short would be a smaller one.
    (digits < limit.len()).then_some(())?;
    Some(Reach {
        distance,
        limit: limit[..digits].parse().ok()?,
        rule: match sign {
            "<=" | ">" => LimitRule::Inclusive,
            "<" | ">=" => LimitRule::Exclusive,
            _ => return None,
        },
    })
}

fn nic(enabled: bool, method: Option<String>, rest: &str) -> Option<GdrNic> {
    let (_, rest) = rest.split_once("HCA ")?;
    let (index, rest) = rest.split_once(" '")?;
    let (name, rest) = rest.split_once('\'').unwrap_or((rest, ""));
    let reason = rest
        .trim()
        .strip_prefix('(')
        .and_then(|t| t.strip_suffix(')'));
    Some(GdrNic {
        enabled,
        method,
        index: index.parse().ok()?,
        name: name.trim().to_owned(),
        reason: reason.map(str::to_owned),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_pair(text: &str) -> (bool, String, String, u32, u32, LimitRule, Option<bool>) {
        let Some(GdrLine::Pair(p)) = GdrLine::parse(text) else {
            panic!("not a pair: {text}")
        };
        (
            p.enabled,
            p.gpu,
            p.nic,
            p.reach.distance,
            p.reach.limit,
            p.reach.rule,
            p.read,
        )
    }

    #[test]
    fn pairs_of_every_release_read() {
        use LimitRule::{Exclusive, Inclusive};
        for (text, pair) in [
            (
                "GPU Direct RDMA Enabled for GPU 13 / HCA d (distance 3 <= 4), read 0",
                (true, "13", "d", 3, 4, Inclusive, Some(false)),
            ),
            (
                "NET/IB : GPU Direct RDMA Disabled for GPU 2[2] / HCA 1 (distance 4 >= 2)",
                (false, "2[2]", "1", 4, 2, Exclusive, None),
            ),
            (
                "GPU Direct RDMA Enabled for GPU 4 / HCA 3 (distance 4 <= 5), read 1 mode Default",
                (true, "4", "3", 4, 5, Inclusive, Some(true)),
            ),
            (
                "GPU Direct RDMA Disabled for GPU/0-1 (rank 0) - NET/0-1 (distance 8 > 6)",
                (false, "0-1 (rank 0)", "0-1", 8, 6, Inclusive, None),
            ),
            (
                "GPU Direct RDMA Enabled for GPU/0-1 (rank 0) - NET/0-1 ( using PXN via GPU/0-2, distance 4 <= 6, read 1, mode PCI)",
                (true, "0-1 (rank 0)", "0-1", 4, 6, Inclusive, Some(true)),
            ),
        ] {
            let (enabled, gpu, nic, distance, limit, rule, read) = pair;
            assert_eq!(
                read_pair(text),
                (enabled, gpu.into(), nic.into(), distance, limit, rule, read),
                "{text}"
            );
        }
    }

    #[test]
    fn nics_read_with_method_and_reason() {
        let Some(GdrLine::Nic(nic)) =
            GdrLine::parse("NET/IB : GPU Direct RDMA (DMABUF) enabled for HCA 5 'mlx5_8")
        else {
            panic!("not a NIC")
        };
        assert_eq!(
            (nic.enabled, nic.index, nic.name.as_str()),
            (true, 5, "mlx5_8")
        );
        assert_eq!(nic.method.as_deref(), Some("DMABUF"));
        let Some(GdrLine::Nic(nic)) =
            GdrLine::parse("NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0' (no module)")
        else {
            panic!("not a NIC")
        };
        assert_eq!(
            (nic.enabled, nic.reason.as_deref()),
            (false, Some("no module"))
        );
    }

    #[test]
    fn cut_lines_say_nothing() {
        for text in [
            "GPU Direct RDMA Enabled for GPU 13 / HCA d (distance 3 <= 4",
            "GPU Direct RDMA Enabled for GPU 13 / HCA d (dist",
            "GPU Direct RDMA Disabled for HCA 0",
            "GPU Direct RDMA Dis",
            "GPU Direct RDMA (nvidia-peermem",
        ] {
            assert_eq!(GdrLine::parse(text), None, "{text}");
        }
    }
}
