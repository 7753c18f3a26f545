//! The layouts and numbers of `infiniband/verbs.h` that this crate uses, under the C names of their
//! fields.
//!
//! They are written by hand from the documented interface and held against the installed headers
//! by a test that compiles a C program ([`layout`](self)'s tests), so no header is needed to build.
//! Enumerations are the plain integers that C passes: a value this version does not know must
//! not be undefined behaviour.

use std::ffi::{c_char, c_int, c_uint, c_void};

#[cfg(test)]
mod tests;

/// `IBV_SYSFS_NAME_MAX`
const NAME_BYTES: usize = 64;
/// `IBV_SYSFS_PATH_MAX`
const PATH_BYTES: usize = 256;

/// `IBV_TRANSPORT_IWARP`
pub const TRANSPORT_IWARP: c_int = 1;
/// `IBV_LINK_LAYER_INFINIBAND`
pub const LINK_LAYER_INFINIBAND: u8 = 1;
/// `IBV_LINK_LAYER_ETHERNET`
pub const LINK_LAYER_ETHERNET: u8 = 2;
/// `IBV_PORT_ACTIVE`
pub const PORT_ACTIVE: c_uint = 4;
/// `IBV_GID_TYPE_ROCE_V1`
pub const GID_TYPE_ROCE_V1: u32 = 1;
/// `IBV_GID_TYPE_ROCE_V2`
pub const GID_TYPE_ROCE_V2: u32 = 2;

/// `IBV_ACCESS_LOCAL_WRITE`
pub const ACCESS_LOCAL_WRITE: c_uint = 1;
/// `IBV_ACCESS_REMOTE_WRITE`
pub const ACCESS_REMOTE_WRITE: c_uint = 1 << 1;
/// `IBV_ACCESS_REMOTE_READ`
pub const ACCESS_REMOTE_READ: c_uint = 1 << 2;
/// `IBV_ACCESS_RELAXED_ORDERING`: the first of the optional flags, which old providers may ignore.
pub const ACCESS_RELAXED_ORDERING: c_uint = 1 << 20;

/// `IBV_QPT_RC`
pub const QPT_RC: c_uint = 2;

/// `IBV_QPS_INIT`
pub const QPS_INIT: c_uint = 1;
/// `IBV_QPS_RTR`
pub const QPS_RTR: c_uint = 2;
/// `IBV_QPS_RTS`
pub const QPS_RTS: c_uint = 3;
/// `IBV_QPS_ERR`
pub const QPS_ERR: c_uint = 6;

/// `IBV_QP_STATE`
pub const QP_STATE: c_int = 1;
/// `IBV_QP_ACCESS_FLAGS`
pub const QP_ACCESS_FLAGS: c_int = 1 << 3;
/// `IBV_QP_PKEY_INDEX`
pub const QP_PKEY_INDEX: c_int = 1 << 4;
/// `IBV_QP_PORT`
pub const QP_PORT: c_int = 1 << 5;
/// `IBV_QP_AV`
pub const QP_AV: c_int = 1 << 7;
/// `IBV_QP_PATH_MTU`
pub const QP_PATH_MTU: c_int = 1 << 8;
/// `IBV_QP_TIMEOUT`
pub const QP_TIMEOUT: c_int = 1 << 9;
/// `IBV_QP_RETRY_CNT`
pub const QP_RETRY_CNT: c_int = 1 << 10;
/// `IBV_QP_RNR_RETRY`
pub const QP_RNR_RETRY: c_int = 1 << 11;
/// `IBV_QP_RQ_PSN`
pub const QP_RQ_PSN: c_int = 1 << 12;
/// `IBV_QP_MAX_QP_RD_ATOMIC`
pub const QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
/// `IBV_QP_MIN_RNR_TIMER`
pub const QP_MIN_RNR_TIMER: c_int = 1 << 15;
/// `IBV_QP_SQ_PSN`
pub const QP_SQ_PSN: c_int = 1 << 16;
/// `IBV_QP_MAX_DEST_RD_ATOMIC`
pub const QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
/// `IBV_QP_DEST_QPN`
pub const QP_DEST_QPN: c_int = 1 << 20;

/// `IBV_WR_RDMA_WRITE`
pub const WR_RDMA_WRITE: c_uint = 0;
/// `IBV_WR_RDMA_WRITE_WITH_IMM`
pub const WR_RDMA_WRITE_WITH_IMM: c_uint = 1;
/// `IBV_WR_SEND`
pub const WR_SEND: c_uint = 2;
/// `IBV_WR_SEND_WITH_IMM`
pub const WR_SEND_WITH_IMM: c_uint = 3;
/// `IBV_WR_RDMA_READ`
pub const WR_RDMA_READ: c_uint = 4;

/// `IBV_SEND_SIGNALED`
pub const SEND_SIGNALED: c_uint = 1 << 1;
/// `IBV_SEND_INLINE`
pub const SEND_INLINE: c_uint = 1 << 3;

/// `IBV_WC_SUCCESS`
pub const WC_SUCCESS: c_uint = 0;
/// `IBV_WC_SEND`
pub const WC_SEND: c_uint = 0;
/// `IBV_WC_RDMA_WRITE`
pub const WC_RDMA_WRITE: c_uint = 1;
/// `IBV_WC_RDMA_READ`
pub const WC_RDMA_READ: c_uint = 2;
/// `IBV_WC_RECV`
pub const WC_RECV: c_uint = 1 << 7;
/// `IBV_WC_RECV_RDMA_WITH_IMM`
pub const WC_RECV_RDMA_WITH_IMM: c_uint = WC_RECV + 1;
/// `IBV_WC_WITH_IMM`
pub const WC_WITH_IMM: c_uint = 1 << 1;

/// `union ibv_gid`, as its 16 bytes in network order. Aligned as its two 64-bit halves are in C.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gid {
    pub raw: [u8; 16],
}

/// `struct ibv_gid_entry`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GidEntry {
    pub gid: Gid,
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}

/// `struct ibv_device`
#[repr(C)]
pub struct Device {
    pub _ops: [*mut c_void; 2],
    pub node_type: c_int,
    pub transport_type: c_int,
    pub name: [c_char; NAME_BYTES],
    pub dev_name: [c_char; NAME_BYTES],
    pub dev_path: [c_char; PATH_BYTES],
    pub ibdev_path: [c_char; PATH_BYTES],
}

/// `struct ibv_device_attr`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DeviceAttr {
    pub fw_ver: [c_char; 64],
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub max_qp_rd_atom: c_int,
    pub max_ee_rd_atom: c_int,
    pub max_res_rd_atom: c_int,
    pub max_qp_init_rd_atom: c_int,
    pub max_ee_init_rd_atom: c_int,
    pub atomic_cap: c_uint,
    pub max_ee: c_int,
    pub max_rdd: c_int,
    pub max_mw: c_int,
    pub max_raw_ipv6_qp: c_int,
    pub max_raw_ethy_qp: c_int,
    pub max_mcast_grp: c_int,
    pub max_mcast_qp_attach: c_int,
    pub max_total_mcast_qp_attach: c_int,
    pub max_ah: c_int,
    pub max_fmr: c_int,
    pub max_map_per_fmr: c_int,
    pub max_srq: c_int,
    pub max_srq_wr: c_int,
    pub max_srq_sge: c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

/// `struct ibv_port_attr`. The exported `ibv_query_port` fills all but the last field, as the C
/// header's own fallback relies on.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PortAttr {
    pub state: c_uint,
    pub max_mtu: c_uint,
    pub active_mtu: c_uint,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
}

/// `struct ibv_pd`
#[repr(C)]
pub struct Pd {
    pub context: *mut Context,
    pub handle: u32,
}

/// `struct ibv_mr`
#[repr(C)]
pub struct Mr {
    pub context: *mut Context,
    pub pd: *mut Pd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

/// `struct ibv_comp_channel`
#[repr(C)]
pub struct CompChannel {
    pub context: *mut Context,
    pub fd: c_int,
    pub refcnt: c_int,
}

/// `struct ibv_cq`
#[repr(C)]
pub struct Cq {
    pub context: *mut Context,
    pub channel: *mut CompChannel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
    pub mutex: libc::pthread_mutex_t,
    pub cond: libc::pthread_cond_t,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
}

/// `struct ibv_qp`
#[repr(C)]
pub struct Qp {
    pub context: *mut Context,
    pub qp_context: *mut c_void,
    pub pd: *mut Pd,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut c_void,
    pub handle: u32,
    pub qp_num: u32,
    pub state: c_uint,
    pub qp_type: c_uint,
    pub mutex: libc::pthread_mutex_t,
    pub cond: libc::pthread_cond_t,
    pub events_completed: u32,
}

/// `struct ibv_qp_cap`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`
#[repr(C)]
pub struct QpInitAttr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut c_void,
    pub cap: QpCap,
    pub qp_type: c_uint,
    pub sq_sig_all: c_int,
}

/// `struct ibv_global_route`
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct GlobalRoute {
    pub dgid: Gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}

/// `struct ibv_ah_attr`
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct AhAttr {
    pub grh: GlobalRoute,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

/// `struct ibv_qp_attr`
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct QpAttr {
    pub qp_state: c_uint,
    pub cur_qp_state: c_uint,
    pub path_mtu: c_uint,
    pub path_mig_state: c_uint,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: QpCap,
    pub ah_attr: AhAttr,
    pub alt_ah_attr: AhAttr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

/// `struct ibv_sge`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// The `wr.rdma` of `struct ibv_send_wr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Rdma {
    pub remote_addr: u64,
    pub rkey: u32,
}

/// The `wr` of `struct ibv_send_wr`; only `rdma` is used, `atomic` gives it its size.
#[repr(C)]
#[derive(Clone, Copy)]
pub union Operation {
    pub rdma: Rdma,
    pub atomic: [u64; 4],
}

/// `struct ibv_send_wr`; its last union (memory windows and segmentation, unused) is `tail`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SendWr {
    pub wr_id: u64,
    pub next: *mut SendWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
    pub opcode: c_uint,
    pub send_flags: c_uint,
    /// In network byte order.
    pub imm_data: u32,
    pub wr: Operation,
    pub qp_type: u32,
    pub tail: [u64; 6],
}

/// `struct ibv_recv_wr`
#[repr(C)]
pub struct RecvWr {
    pub wr_id: u64,
    pub next: *mut RecvWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
}

/// `struct ibv_wc`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Wc {
    pub wr_id: u64,
    pub status: c_uint,
    pub opcode: c_uint,
    pub vendor_err: u32,
    pub byte_len: u32,
    /// In network byte order, when the flags say that there is one.
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

/// `ops.poll_cq`
pub type PollCq = unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int;
/// `ops.req_notify_cq`
pub type ReqNotifyCq = unsafe extern "C" fn(*mut Cq, c_int) -> c_int;
/// `ops.post_send`
pub type PostSend = unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int;
/// `ops.post_recv`
pub type PostRecv = unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int;

/// `struct ibv_context_ops`: what the header's inline functions call. The unused entries keep
/// their places.
#[repr(C)]
pub struct ContextOps {
    pub before_poll: [*mut c_void; 11],
    pub poll_cq: Option<PollCq>,
    pub req_notify_cq: Option<ReqNotifyCq>,
    pub before_post: [*mut c_void; 12],
    pub post_send: Option<PostSend>,
    pub post_recv: Option<PostRecv>,
    pub after_post: [*mut c_void; 5],
}

/// `struct ibv_context`
#[repr(C)]
pub struct Context {
    pub device: *mut Device,
    pub ops: ContextOps,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
    pub mutex: libc::pthread_mutex_t,
    pub abi_compat: *mut c_void,
}
