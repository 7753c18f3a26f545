//! What makes data that a NIC wrote visible to the GPU that will use it.

use crowfly_route::receipt::Visibility;

use super::{Mapping, Way};

/// What is known of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuFacts {
    /// Its compute capability, such as (9, 0), for an NVIDIA GPU.
    pub compute_capability: Option<(u32, u32)>,
    /// Whether it is joined to the CPU by a coherent link beside PCIe (NVLink-C2C).
    pub coherent_link: bool,
}

/// What must happen between a peer's write and its use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Flush {
    /// Nothing; why.
    NotNeeded(&'static str),
    /// A flush by the driver, or else a read of one byte through the same NIC; why.
    LoopbackRead(&'static str),
    /// A read of one byte through the same NIC, for the data takes another way than what tells of it.
    SplitPaths(&'static str),
    /// Nobody documents it; why not.
    Unknown(&'static str),
}

impl Flush {
    pub(super) const fn not_needed_for_host() -> Self {
        Self::NotNeeded("host memory is coherent with DMA")
    }

    /// The rule that NCCL's network transport follows (`net_ib`, GPU flush): below compute
    /// capability 9.0 a GPU may let a kernel that starts after the completion miss the last writes,
    /// and so may one whose data and completions take different paths.
    pub(super) fn of(facts: &GpuFacts, way: Way) -> Self {
        let split = facts.coherent_link && way == Way::DmaBuf(Mapping::Pcie);
        match facts.compute_capability {
            _ if way == Way::DataDirect => Self::SplitPaths(
                "the data goes by the NIC's data-direct function and the completion by another",
            ),
            _ if split => Self::SplitPaths(
                "the data goes over PCIe and the completion over the coherent link",
            ),
            Some((major, _)) if major >= 9 => {
                Self::NotNeeded("GPUs from compute capability 9.0 on order the NIC's writes")
            }
            Some(_) => Self::LoopbackRead(
                "GPUs below compute capability 9.0 may show the NIC's writes late",
            ),
            None => Self::Unknown("the GPU's ordering of a NIC's writes is not documented"),
        }
    }

    /// What a receipt says when the flush was not done.
    pub fn without_flush(&self) -> Visibility {
        match self {
            Self::NotNeeded(why) => Visibility::NotNeeded((*why).into()),
            Self::LoopbackRead(why) | Self::SplitPaths(why) => {
                Visibility::Unknown(format!("no read through the NIC was done, and {why}"))
            }
            Self::Unknown(why) => Visibility::Unknown((*why).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(major: u32, coherent_link: bool) -> GpuFacts {
        GpuFacts {
            compute_capability: Some((major, 0)),
            coherent_link,
        }
    }

    #[test]
    fn older_gpus_and_split_paths_need_a_read_and_newer_ones_do_not() {
        let default = Way::DmaBuf(Mapping::Default);
        let pcie = Way::DmaBuf(Mapping::Pcie);
        assert!(matches!(
            Flush::of(&gpu(8, false), default),
            Flush::LoopbackRead(_)
        ));
        assert!(matches!(
            Flush::of(&gpu(9, false), default),
            Flush::NotNeeded(_)
        ));
        assert!(matches!(
            Flush::of(&gpu(9, true), default),
            Flush::NotNeeded(_)
        ));
        assert!(matches!(
            Flush::of(&gpu(9, true), pcie),
            Flush::SplitPaths(_)
        ));
        assert!(matches!(
            Flush::of(&gpu(10, false), Way::DataDirect),
            Flush::SplitPaths(_)
        ));
        assert!(matches!(
            Flush::of(&GpuFacts::default(), default),
            Flush::Unknown(_)
        ));
    }

    #[test]
    fn a_flush_that_was_needed_and_not_done_is_never_reported_as_visible() {
        let needed = Flush::of(&gpu(8, false), Way::PeerClient);
        assert!(matches!(needed.without_flush(), Visibility::Unknown(_)));
        let host = Flush::not_needed_for_host().without_flush();
        assert_eq!(
            host,
            Visibility::NotNeeded("host memory is coherent with DMA".into())
        );
    }
}
