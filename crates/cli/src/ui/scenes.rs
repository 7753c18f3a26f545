//! What there is to play on a machine: journeys of a batch, and the scenes of each: sockets, RDMA,
//! GPUDirect, and a device on the wrong side.
//!
//! A scene is a question to the search (`from`, `to`) and the name of the way to play. Whether a
//! machine has such a way, and what stands in it, the search says.

use crowfly_route::topology::{Device, GpuLinkKind, Relation, Topology};
use serde::Serialize;

/// The GPU that journeys lead to.
const GPU: usize = 0;
/// A store of objects that stands for all of them; nothing is fetched from it.
const OBJECT: &str = "https://store/batch";

/// A way of a batch from one kind of place to another.
#[derive(Debug, PartialEq, Serialize)]
pub struct Journey {
    /// A stable name.
    pub id: &'static str,
    /// For people.
    pub title: &'static str,
    /// Its scenes, the usual one first.
    pub scenes: Vec<Scene>,
}

/// One way of a journey.
#[derive(Debug, PartialEq, Serialize)]
pub struct Scene {
    /// A stable name.
    pub id: &'static str,
    /// For people.
    pub title: &'static str,
    /// Where the batch starts.
    pub from: String,
    /// Where it ends.
    pub to: String,
    /// The way's name in the plan.
    pub way: &'static str,
}

fn scene(
    id: &'static str,
    title: &'static str,
    (from, to): (&str, &str),
    way: &'static str,
) -> Scene {
    Scene {
        id,
        title,
        from: from.to_owned(),
        to: to.to_owned(),
        way,
    }
}

/// The journeys of a machine, those that it has the devices for.
pub fn journeys(topology: &Topology) -> Vec<Journey> {
    let has_gpu = !topology.gpus.is_empty();
    let end = if has_gpu { "gpu:0" } else { "host" };
    let mut journeys = Vec::new();
    let nics = Sides::of(topology, (0..topology.nics.len()).map(Device::Nic));
    let place = |device: Device| {
        let name = topology.name_of(device);
        match device {
            Device::Nic(_) => format!("nic:{name}"),
            _ => format!("drive:{name}"),
        }
    };
    if let Some(near) = nics.near {
        let ends = (place(near), end);
        let ends = (ends.0.as_str(), ends.1);
        let mut scenes = vec![
            scene("sockets", "Sockets", ends, "sockets"),
            scene("rdma", "RDMA", ends, "rdma"),
        ];
        if has_gpu {
            scenes.push(scene("gpudirect", "GPUDirect RDMA", ends, "gpudirect-rdma"));
        }
        if let Some(far) = nics.far {
            let ends = (place(far), end);
            let ends = (ends.0.as_str(), ends.1);
            scenes.push(scene(
                "wrong-side",
                "Wrong-side NIC",
                ends,
                "gpudirect-rdma",
            ));
        }
        journeys.push(Journey {
            id: "network",
            title: "A batch arrives from a storage server",
            scenes,
        });
    }
    let drives = Sides::of(topology, (0..topology.drives.len()).map(Device::Drive));
    if let Some(near) = drives.near {
        let drive = place(near);
        let ends = (drive.as_str(), end);
        let mut scenes = vec![
            scene("page-cache", "Page cache", ends, "page-cache"),
            scene("o-direct", "O_DIRECT", ends, "o-direct"),
        ];
        if has_gpu {
            scenes.push(scene(
                "gpudirect",
                "GPUDirect Storage",
                ends,
                "gpudirect-storage",
            ));
        }
        if let Some(far) = drives.far {
            let far = place(far);
            let ends = (far.as_str(), end);
            scenes.push(scene(
                "wrong-side",
                "Wrong-side drive",
                ends,
                "gpudirect-storage",
            ));
        }
        journeys.push(Journey {
            id: "drive",
            title: "A batch is read from a local drive",
            scenes,
        });
        if has_gpu {
            let ends = (end, drive.as_str());
            journeys.push(Journey {
                id: "checkpoint",
                title: "A checkpoint is written to a local drive",
                scenes: vec![
                    scene("page-cache", "Page cache", ends, "page-cache"),
                    scene("o-direct", "O_DIRECT", ends, "o-direct"),
                    scene("gpudirect", "GPUDirect Storage", ends, "gpudirect-storage"),
                ],
            });
        }
    }
    if !topology.nics.is_empty() {
        journeys.push(Journey {
            id: "object",
            title: "A batch is fetched from an object store",
            scenes: vec![scene("tls", "HTTPS", (OBJECT, end), "sockets-tls")],
        });
        let ends = if has_gpu {
            ("gpu:0", "remote:gpu:0")
        } else {
            ("host", "remote:host")
        };
        let mut scenes = vec![
            scene("sockets", "Sockets", ends, "sockets"),
            scene("rdma", "RDMA", ends, "rdma"),
        ];
        if has_gpu {
            scenes.push(scene("gpudirect", "GPUDirect RDMA", ends, "gpudirect-rdma"));
        }
        journeys.push(Journey {
            id: "servers",
            title: "Gradients go to a GPU of another server",
            scenes,
        });
    }
    if topology.gpus.len() > 1 {
        let ends = ("gpu:0", "gpu:1");
        let mut scenes = vec![
            scene("staged", "Through host RAM", ends, "host-staged"),
            scene("peer", "PCIe peer to peer", ends, "gpu-peer-to-peer"),
        ];
        if let Some(link) = topology.gpu_links.iter().find(|l| (l.a, l.b) == (0, 1)) {
            let way = match link.kind {
                GpuLinkKind::NvLink => ("nvlink", "NVLink"),
                GpuLinkKind::Xgmi => ("xgmi", "xGMI"),
            };
            scenes.push(scene("link", way.1, ends, way.0));
        }
        journeys.push(Journey {
            id: "gpus",
            title: "Gradients go to a GPU of the same server",
            scenes,
        });
    }
    journeys
}

/// The device nearest to the GPU, and one that lies beyond its own CPU's PCIe switches.
struct Sides {
    near: Option<Device>,
    far: Option<Device>,
}

impl Sides {
    fn of(topology: &Topology, devices: impl Iterator<Item = Device>) -> Self {
        let all: Vec<Device> = devices.collect();
        if topology.gpus.is_empty() {
            return Self {
                near: all.first().copied(),
                far: None,
            };
        }
        let relation = |device: &Device| topology.distance(Device::Gpu(GPU), *device).relation;
        let usable = |device: &&Device| topology.address_of(**device).is_some();
        let near = all.iter().filter(usable).min_by_key(|d| rank(relation(d)));
        let across = |device: &&Device| matches!(relation(device), Relation::Sys | Relation::Node);
        let far = all.iter().filter(across).max_by_key(|d| rank(relation(d)));
        let near = near.or_else(|| all.first()).copied();
        Self {
            near,
            far: far.copied().filter(|far| Some(*far) != near),
        }
    }
}

/// How far that is.
const fn rank(relation: Relation) -> u8 {
    match relation {
        Relation::Same | Relation::NvLink(_) | Relation::Xgmi(_) => 0,
        Relation::Pix => 1,
        Relation::Pxb => 2,
        Relation::Phb => 3,
        Relation::Node => 4,
        Relation::Sys => 5,
        Relation::Unknown => 6,
    }
}

#[cfg(test)]
mod tests {
    use crowfly_route::fixture::machines;
    use crowfly_route::place::Place;
    use crowfly_route::search;

    use super::*;

    fn told(topology: &Topology) -> Vec<String> {
        let journeys = journeys(topology).into_iter();
        journeys
            .flat_map(|journey| {
                let scenes = journey.scenes.into_iter();
                scenes.map(move |s| {
                    format!(
                        "{}/{}: {} → {} by {}",
                        journey.id, s.id, s.from, s.to, s.way
                    )
                })
            })
            .collect()
    }

    #[test]
    fn given_a_dgx_the_scenes_of_the_article_are_there_and_the_wrong_side_is_the_other_socket() {
        let told = told(&machines::dgx_h100().topology());
        for expected in [
            "network/sockets: nic:mlx5_0 → gpu:0 by sockets",
            "network/gpudirect: nic:mlx5_0 → gpu:0 by gpudirect-rdma",
            "drive/gpudirect: drive:nvme0 → gpu:0 by gpudirect-storage",
            "servers/rdma: gpu:0 → remote:gpu:0 by rdma",
            "gpus/link: gpu:0 → gpu:1 by nvlink",
            "object/tls: https://store/batch → gpu:0 by sockets-tls",
        ] {
            assert!(told.contains(&expected.to_owned()), "{told:#?}");
        }
        let wrong = told.iter().find(|t| t.starts_with("network/wrong-side"));
        let wrong = wrong.expect("there is one");
        assert!(
            ["mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7"]
                .iter()
                .any(|nic| wrong.contains(nic)),
            "{wrong}"
        );
    }

    #[test]
    fn every_scene_is_a_question_that_the_search_answers_with_that_way() {
        for machine in [
            machines::dgx_h100(),
            machines::pcie_box(),
            machines::laptop(),
            machines::sixteen_gpus(),
        ] {
            let (topology, snapshot) = (machine.topology(), machine.snapshot());
            for journey in journeys(&topology) {
                let mut named = 0;
                for scene in &journey.scenes {
                    let place = |text: &str| text.parse::<Place>().expect("a place");
                    let (from, to) = (place(&scene.from), place(&scene.to));
                    let found = search::candidates(&topology, Some(&snapshot), &from, &to);
                    let found = found.expect("both exist");
                    named += usize::from(found.iter().any(|c| c.route.name == scene.way));
                }
                assert!(named > 0, "{journey:?}");
            }
        }
    }
}
