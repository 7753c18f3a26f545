//! Routes out of network file systems and object stores.

use super::World;
use super::draft::Draft;
use super::fabric::{End, How};
use super::legs::host;
use super::store::{Client, Network, Store, Transport};
use crate::hop::{CpuWork, Hop, HostUse, Stop};
use crate::obstacle::{Code, Confidence, Evidence, Fix, Obstacle};
use crate::topology::Device;
use crate::units::NumaNode;

/// Where the clients of network file systems show that nvidia-fs can place data for them.
const NVME_HOOKS: [&str; 1] = ["kallsyms:nvme_rdma_v1_register_nvfs_dma_ops"];
const NFS_HOOKS: [&str; 1] = ["kallsyms:rpcrdma_register_nvfs_dma_ops"];
const LUSTRE_HOOKS: [&str; 2] = [
    "kallsyms:lnet_register_nvfs_dma_ops",
    "kallsyms:lustre_v1_register_nvfs_dma_ops",
];
const PLAIN_HTTP: &str = "http://";

impl<'a> World<'a> {
    /// From a network file system into host or GPU memory.
    pub(super) fn servers_to(
        &self,
        store: &Store<'a>,
        servers: Network<'a>,
        end: End,
    ) -> Vec<Draft> {
        let from = Stop::Store {
            name: servers.source.to_owned(),
        };
        let mut drafts = Vec::new();
        if servers.transport != Transport::Sockets {
            drafts.extend(self.servers_by_rdma(store, servers, end, &from));
        }
        if servers.transport != Transport::Rdma {
            drafts.extend(self.servers_by_sockets(servers, end, &from));
        }
        drafts
    }

    fn servers_by_rdma(
        &self,
        store: &Store<'a>,
        servers: Network<'a>,
        end: End,
        from: &Stop,
    ) -> Vec<Draft> {
        let straight_name = "gpudirect-storage";
        let Some(nic) = self.nics_for(end, How::Rdma).last().copied() else {
            let missing = self.no_nic(How::Rdma);
            return vec![Draft::missing("rdma", missing)];
        };
        let unsaid = (servers.transport == Transport::Unsaid).then(|| self.unsaid(servers));
        let arrive = self.wire_hop(nic, How::Rdma, from.clone());
        let whole = |hops: Vec<Hop>| [vec![arrive.clone()], hops].concat();
        let mut drafts = Vec::new();
        if let End::Gpu(gpu) = end {
            let hops = whole(self.off_nic(nic, end, How::Straight));
            let draft = Draft::new(straight_name, hops)
                .with(self.client_places(store, servers))
                .with(self.peer_access(gpu))
                .with(self.nic_reaches(nic, gpu));
            drafts.push(draft);
        }
        let direct = whole(self.off_nic(nic, end, How::Rdma));
        drafts.push(Draft::new("rdma", direct));
        let cached = whole(self.through_cache(nic, end, How::Rdma));
        drafts.push(Draft::new("page-cache", cached));
        drafts
            .into_iter()
            .map(|draft| {
                draft
                    .with(unsaid.clone())
                    .with(self.way_open(nic, ram_of(end), How::Rdma, false))
                    .with(self.runtime_of(end))
            })
            .collect()
    }

    fn servers_by_sockets(&self, servers: Network<'a>, end: End, from: &Stop) -> Vec<Draft> {
        let mut drafts = Vec::new();
        if let End::Gpu(_) = end
            && servers.transport == Transport::Sockets
        {
            drafts.push(Draft::missing(
                "gpudirect-storage",
                self.kernel_client(servers),
            ));
        }
        let Some(nic) = self.nic_outside(end) else {
            drafts.push(Draft::missing("sockets", self.no_nic(How::Sockets)));
            return drafts;
        };
        let arrive = self.wire_hop(nic, How::Sockets, from.clone());
        let direct = [vec![arrive.clone()], self.off_nic(nic, end, How::Sockets)].concat();
        let cached = [vec![arrive], self.through_cache(nic, end, How::Sockets)].concat();
        for (name, hops) in [("sockets", direct), ("page-cache", cached)] {
            drafts.push(
                Draft::new(name, hops)
                    .with(self.way_open(nic, ram_of(end), How::Sockets, false))
                    .with(self.runtime_of(end)),
            );
        }
        drafts
    }

    /// From a network file system into the page cache, by the adapter it would use.
    pub(super) fn servers_to_cache(&self, servers: Network<'a>, cache: Stop) -> Vec<Hop> {
        let end = End::Host(match &cache {
            Stop::Host { numa, .. } => *numa,
            _ => None,
        });
        let by_rdma = match servers.transport {
            Transport::Rdma => self.nics_for(end, How::Rdma).last().copied(),
            _ => None,
        };
        let (nic, how) = match (by_rdma, self.nic_outside(end)) {
            (Some(nic), _) => (nic, How::Rdma),
            (None, Some(nic)) => (nic, How::Sockets),
            (None, None) => return Vec::new(),
        };
        let from = Stop::Store {
            name: servers.source.to_owned(),
        };
        let mut hops = vec![self.wire_hop(nic, how, from)];
        hops.extend(self.off_nic_to_ram(nic, cache, how));
        hops
    }

    /// Off an adapter by way of the page cache.
    fn through_cache(&self, nic: usize, end: End, how: How) -> Vec<Hop> {
        let numa = self.node_for(nic, end);
        let cache = host(HostUse::PageCache, numa);
        let mut hops = self.off_nic_to_ram(nic, cache.clone(), how);
        match end {
            End::Host(_) => {
                let own = host(HostUse::Application, numa);
                hops.push(self.cpu(CpuWork::KernelCopy, cache, own));
            }
            End::Gpu(gpu) => {
                let bounce = host(HostUse::Bounce, numa);
                hops.push(self.cpu(CpuWork::KernelCopy, cache, bounce.clone()));
                hops.push(self.dma_from_host(Device::Gpu(gpu), bounce, self.gpu_stop(gpu)));
            }
        }
        hops
    }

    fn node_for(&self, nic: usize, end: End) -> Option<NumaNode> {
        match end {
            End::Gpu(gpu) => self.node_of(Device::Gpu(gpu)),
            End::Host(numa) => numa.or_else(|| self.node_of(Device::Nic(nic))),
        }
    }

    fn runtime_of(&self, end: End) -> Vec<Obstacle> {
        match end {
            End::Gpu(gpu) => self.gpu_runtime(gpu),
            End::Host(_) => Vec::new(),
        }
    }

    /// Whether the client of a network file system places data in GPU memory.
    fn client_places(&self, store: &Store<'a>, servers: Network<'a>) -> Vec<Obstacle> {
        let fs = match servers.client {
            Client::FileSystem(fs) => fs,
            Client::Nvme => {
                let hook = self.nvidia_fs_client(&NVME_HOOKS, "NVMe over RDMA");
                let layers = self.layers_for_nvidia_fs(store);
                let placed = self.placed_by_cufile(store).into_iter().collect();
                return [hook, layers, placed].concat();
            }
        };
        match fs {
            "nfs" | "nfs4" => self.nvidia_fs_client(&NFS_HOOKS, "NFS over RDMA"),
            "lustre" => self.nvidia_fs_client(&LUSTRE_HOOKS, "Lustre"),
            // These clients show no hook of their own: nvidia-fs lists who registered with it.
            "wekafs" | "gpfs" | "beegfs" | "beegfs_nodev" => {
                let mut found = self.nvidia_fs_client(&[], fs);
                let key = "/proc/driver/nvidia-fs/modules";
                if found.iter().all(|o| o.code != Code::NoStorageDriver) {
                    let obstacle = Obstacle::unproven(
                        Code::NoStorageDriver,
                        format!(
                            "Whether the {fs} client registered with nvidia-fs has to be read from its list."
                        ),
                    );
                    found.push(obstacle.proved_by([self.seen.quote(key)]));
                }
                found
            }
            _ => vec![
                Obstacle::blocks(
                    Code::FileSystemUnsupported,
                    format!("GPUDirect Storage knows no client of {fs}."),
                )
                .proved_by(self.mount_evidence(store)),
            ],
        }
    }

    fn unsaid(&self, servers: Network<'a>) -> Obstacle {
        Obstacle::unproven(
            Code::NetworkFileSystem,
            format!(
                "Whether the client of {} talks RDMA or TCP was not looked at, or is in its own configuration.",
                servers.source
            ),
        )
        .proved_by([self.client_evidence(servers)])
    }

    fn kernel_client(&self, servers: Network<'a>) -> Obstacle {
        let (client, fix) = match servers.client {
            Client::FileSystem("nfs" | "nfs4") => (
                "NFS client",
                "If the server speaks NFS over RDMA, mount with -o proto=rdma,port=20049.",
            ),
            Client::FileSystem("lustre") => (
                "Lustre client",
                "Give client and servers a network over RDMA (o2ib).",
            ),
            Client::FileSystem(_) => (
                "client of the file system",
                "Copy the data to a local NVMe drive, or serve it by a file system with an RDMA client.",
            ),
            Client::Nvme => (
                "NVMe driver",
                "Connect the drive by RDMA: nvme connect -t rdma.",
            ),
        };
        Obstacle::blocks(
            Code::NetworkFileSystem,
            format!(
                "The {client} takes the data of {} from the kernel's network stack, which copies it in host RAM.",
                servers.source
            ),
        )
        .proved_by([self.client_evidence(servers)])
        .fixed_by(Fix::by_hand(fix))
    }

    /// What tells how a client talks to its servers.
    fn client_evidence(&self, servers: Network<'a>) -> Evidence {
        let source = servers.source;
        let fs = match servers.client {
            Client::Nvme => {
                return self
                    .seen
                    .quote(format!("/sys/class/nvme/{source}/transport"));
            }
            Client::FileSystem(fs) => fs,
        };
        let mut mounts = self.topology.mounts.iter();
        let mount = mounts.find(|mount| mount.source == source && mount.fs_type == fs);
        let options = mount.map_or(&[][..], |mount| mount.options.as_slice());
        let told: Vec<&str> = options
            .iter()
            .map(String::as_str)
            .filter(|option| {
                ["proto=", "vers=", "net="]
                    .iter()
                    .any(|w| option.starts_with(w))
            })
            .collect();
        let shows = format!("{source} type {fs} {}", told.join(","));
        Evidence::new("/proc/self/mountinfo", shows.trim_end())
    }

    /// From an object store into host or GPU memory.
    pub(super) fn object_to(&self, url: &str, end: End) -> Vec<Draft> {
        let store = Stop::Store { name: url.into() };
        let tls = !url.starts_with(PLAIN_HTTP);
        let why = self.object_store(url, tls);
        let straight = match end {
            End::Gpu(_) => "gpudirect-rdma",
            End::Host(_) => "rdma",
        };
        let straight = Draft::missing(straight, why);
        let name = if tls { "sockets-tls" } else { "sockets" };
        let Some(nic) = self.nic_outside(end) else {
            return vec![straight, Draft::missing(name, self.no_nic(How::Sockets))];
        };
        let numa = self.node_for(nic, end);
        let mut hops = vec![self.wire_hop(nic, How::Sockets, store)];
        let last = match end {
            End::Host(_) => HostUse::Application,
            End::Gpu(_) => HostUse::Bounce,
        };
        if tls {
            let cipher = host(HostUse::Bounce, numa);
            hops.extend(self.off_nic_to_ram(nic, cipher.clone(), How::Sockets));
            hops.push(self.cpu(CpuWork::Crypto, cipher, host(last, numa)));
        } else {
            hops.extend(self.off_nic_to_ram(nic, host(last, numa), How::Sockets));
        }
        if let End::Gpu(gpu) = end {
            hops.push(self.dma_from_host(Device::Gpu(gpu), host(last, numa), self.gpu_stop(gpu)));
        }
        let sockets = Draft::new(name, hops)
            .with(self.way_open(nic, ram_of(end), How::Sockets, false))
            .with(self.runtime_of(end));
        vec![straight, sockets]
    }

    fn object_store(&self, url: &str, tls: bool) -> Obstacle {
        let scheme = url.split(':').next().unwrap_or_default().to_owned();
        let work = if tls { "HTTP and TLS" } else { "HTTP" };
        Obstacle::blocks(
            Code::ObjectStore,
            format!("The store speaks {work} over TCP: the bytes pass the kernel's network stack and a CPU core."),
        )
        .seen("URL", format!("{scheme}://"))
        .with_confidence(Confidence::Likely)
        .fixed_by(Fix::by_hand(
            "Keep what is read often on a local NVMe drive or a parallel file system; some stores also serve objects over RDMA to their own clients.",
        ))
    }
}

/// The part of a way that ends in host RAM, whatever comes behind.
const fn ram_of(end: End) -> End {
    match end {
        End::Host(numa) => End::Host(numa),
        End::Gpu(_) => End::Host(None),
    }
}
