//! One text of each format, short and made up.

use crowfly_doctor::evidence::Format;

/// The texts. Each is recognised by every line it begins with and says something.
pub const SAMPLES: &[(Format, &str)] = &[
    (
        Format::NcclLog,
        "\
NCCL version 2.27.3+cuda12.9
alpha:1:2 [0] NCCL INFO NCCL_IB_HCA set by environment to mlx5_0
alpha:1:2 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>
alpha:1:2 [0] NCCL INFO NET/IB : Using [0]={[0] mlx5_0:1/RoCE, [1] mlx5_1:1/RoCE} [RO]; OOB eth0:10.0.0.1<0>
alpha:1:2 [0] NCCL INFO GPU Direct RDMA Enabled for GPU 0 / HCA 0 (distance 4 <= 5), read 0 mode Default
alpha:1:2 [0] NCCL INFO ncclCommInitRank comm 0x5 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 8d000 commId 0x7d - Init COMPLETE
alpha:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0(0)/GDRDMA(PCI)/Shared
alpha:1:2 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0
alpha:1:2 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 1
[2026-01-01 12:08:32] alpha:1:2 [0] int f(a*, b):46 NCCL WARN NET/IB: Got completion from peer 10.0.0.2<5> with status=12 opcode=1 len=0 vendor err 129 (Send) hca mlx5_0
",
    ),
    (
        Format::TopoMatrix,
        "\
\tGPU0\tGPU1\tNIC0\tDD0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV18\tPXB\tSYS\t0-31\t0\t\tN/A
GPU1\tNV18\t X \tSYS\tPXB\t\t1\t\tN/A
NIC0\tPXB\tSYS\t X \tSYS
DD0\tSYS\tPXB\tSYS\t X
Legend:
  X    = Self
NIC Legend:
  NIC0: mlx5_0
  DD0: mlx5_0 data-direct function
",
    ),
    (
        Format::P2pMatrix,
        "$ nvidia-smi topo -p2p r\n \tGPU0\tGPU1\n GPU0\tX\tNS\n GPU1\tNS\tX\n",
    ),
    (
        Format::RocmTopology,
        "\
=============================== Link Type between two GPUs ===============================
       GPU0         GPU1
GPU0   0            XGMI
GPU1   XGMI         0
GPU[0]\t\t: (Topology) Numa Node: 0
",
    ),
    (
        Format::NcclTopology,
        "\
<system version=\"1\">
  <cpu numaid=\"0\" arch=\"x86_64\" vendor=\"AuthenticAMD\" familyid=\"175\" modelid=\"1\">
    <pci busid=\"0000:23:00.0\" class=\"0x030200\" link_speed=\"32.0 GT/s PCIe\" link_width=\"16\">
      <gpu dev=\"0\" sm=\"90\" rank=\"0\" gdr=\"1\"><nvlink target=\"0000:43:00.0\" count=\"2\"/></gpu>
    </pci>
  </cpu>
</system>
",
    ),
    (
        Format::NcclGraph,
        "<graphs version=\"1\">\n  <graph id=\"0\" nchannels=\"1\" typeinter=\"PIX\">\n    <channel><net dev=\"0\"/><gpu dev=\"0\"/></channel>\n  </graph>\n</graphs>\n",
    ),
    (
        Format::NcclTests,
        "\
# nThread 1 nGpus 1 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 20
#  Rank  0 Group  0 Pid   1 on alpha device  0 [0x1a] NVIDIA H100
           8             2     float     sum      -1    12.90    0.00    0.00      0    12.87    0.00    0.00    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 1.5
",
    ),
    (
        Format::GdsCheck,
        "\
 GDS release version: 1.12.1.3
 nvidia_fs version:  2.22 libcufile version: 2.12
 NVMe               : Supported
 --rdma library        : Not Loaded (libcufile_rdma.so)
 properties.use_compat_mode : true
 GPU index 0 NVIDIA L40S bar:1 bar size (MiB):65536 supports GDS, IOMMU State: Disabled
 IOMMU: disabled
 Platform verification succeeded
",
    ),
    (
        Format::CufileLog,
        " 16-06-2024 05:40:20:816 [pid=30 tid=31] ERROR  cufio-fs:79 mount option not found: /dev/nvme0n1p2\n",
    ),
    (
        Format::CufileConfig,
        "{\n  \"properties\": {\n    // comment\n    \"allow_compat_mode\": true, // so\n    \"sizes\": [ 4, 16 ]\n  }\n}\n",
    ),
    (
        Format::NvidiaFsStats,
        "GDS Version: 1.10\nNVFS Driver(version: 2.20:5)\nMmap : n=1 ok=1 err=0\nGPU 0000:01:00.0  uuid:ab : Registered_MiB=0\n",
    ),
    (
        Format::IbvDevinfo,
        "hca_id: mlx5_0\n\tfw_ver:\t28.41\n\t\tport:\t1\n\t\t\tstate:\tPORT_ACTIVE (4)\n\t\t\tactive_width: 4X (2)\n\t\t\tactive_speed: 25.0 Gbps (32)\n\t\t\tGID[  3]: ::ffff:10.0.0.1, RoCE v2\n",
    ),
    (
        Format::Ibstat,
        "CA 'mlx5_0'\n\tCA type: MT4129\n\tPort 1:\n\t\tState: Active\n\t\tRate: 400\n",
    ),
    (
        Format::Ibstatus,
        "Infiniband device 'mlx5_0' port 1 status:\n\tstate:\t 4: ACTIVE\n\trate:\t 400 Gb/sec (4X NDR)\n",
    ),
    (
        Format::ShowGids,
        "DEV\tPORT\tINDEX\tGID\tIPv4\tVER\tDEV\nmlx5_0\t1\t3\t0000:0000:0000:0000:0000:ffff:0a0a:0a01\t10.10.10.1\tv2\teth0\nn_gids_found=1\n",
    ),
    (
        Format::RdmaLink,
        "link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev eth0\n",
    ),
    (
        Format::Lspci,
        "\
0000:c1:00.0 3D controller [0302]: NVIDIA Corporation L40S [10de:26b9] (rev a1)
\tRegion 1: Memory at 13000000000 (64-bit, prefetchable) [size=64G]
\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x16
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-
\tKernel driver in use: nvidia
",
    ),
    (
        Format::LspciTree,
        "-+-[0000:60]-+-00.0  Host\n |           \\-01.1-[61-63]----00.0-[62-63]--+-00.0-[63]----00.0  NIC\n |                                           \\-04.0-[64]----00.0  GPU\n",
    ),
    (
        Format::Lstopo,
        "<topology version=\"2.0\">\n  <object type=\"Machine\"/>\n</topology>\n",
    ),
    (
        Format::Lsblk,
        "NAME    MAJ:MIN RM  SIZE RO TYPE  MOUNTPOINTS\nnvme0n1 259:0    0  1.9T  0 disk\n└─md0     9:0    0  3.8T  0 raid0 /data\n",
    ),
    (
        Format::KernelLog,
        "[  100.000001] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n[  100.000002] usb 1-1: new device\n",
    ),
    (
        Format::KernelCmdline,
        "BOOT_IMAGE=/vmlinuz-6.8 root=UUID=1 ro iommu=pt pci=\"a b\"\n",
    ),
    (
        Format::UcxLog,
        "\
[1745994234.000001] [alpha:1:0]  ucp_context.c:2137 UCX  INFO  Version 1.16.0 (loaded from /lib/libucp.so.0)
[1745994234.000002] [alpha:1:0]  ucp_worker.c:1903 UCX  INFO    ucp_context_2 inter-node cfg#3 rma(rc_mlx5/mlx5_2:1)  am(tcp/eth0)
[1745994234.000003] [alpha:1:0]   | perftest inter-node cfg#0 | active message by ucp_am_send* from cuda/GPU0 |
[1745994234.000004] [alpha:1:0]   |                    0..inf | zero-copy | rc_mlx5/mlx5_0:1 |
",
    ),
    (
        Format::NixlLog,
        "Initialized NIXL agent: a\nE0421 11:56:59.774282  709 nixl_agent.cpp:259] backend 'UCX' not found\n",
    ),
    (
        Format::MooncakeLog,
        "I20251205 03:33:19.097743  2021 rdma_context.cpp:140] RDMA device: mlx5_8, LID: 0\n",
    ),
    (
        Format::Environment,
        "NCCL_DEBUG=INFO\nHOME=/root\nexport UCX_TLS=\"rc,cuda\"\n",
    ),
    (
        Format::Snapshot,
        "{\n  \"schema\": \"crowfly.snapshot/1\",\n  \"files\": {\n    \"a\": \"}\"\n  }\n}\n",
    ),
];
