//! Holds the layouts and numbers against the headers that are installed.

use std::fmt::Write as _;
use std::mem::offset_of;
use std::process::Command;

use super::*;

const HEADER: &str = "/usr/include/infiniband/verbs.h";

/// What one line of C prints, and what it should print.
struct Expected {
    c: String,
    value: u64,
}

macro_rules! layouts {
    ($($name:ident = $c:literal { $($field:ident $(as $c_field:literal)?),* $(,)? })*) => {
        vec![$(
            Expected { c: format!("sizeof({})", $c), value: size_of::<$name>() as u64 },
            Expected { c: format!("_Alignof({})", $c), value: align_of::<$name>() as u64 },
            $(Expected {
                c: format!("offsetof({}, {})", $c, layouts!(@name $field $($c_field)?)),
                value: offset_of!($name, $field) as u64,
            },)*
        )*]
    };
    (@name $field:ident $c_field:literal) => { $c_field };
    (@name $field:ident) => { stringify!($field) };
}

macro_rules! numbers {
    ($($name:ident),* $(,)?) => {
        vec![$(Expected { c: concat!("IBV_", stringify!($name)).into(), value: $name as u64 },)*]
    };
}

fn expected() -> Vec<Expected> {
    let mut all = layouts! {
        Gid = "union ibv_gid" { raw }
        GidEntry = "struct ibv_gid_entry" { gid, gid_index, port_num, gid_type, ndev_ifindex }
        Device = "struct ibv_device" {
            _ops, node_type, transport_type, name, dev_name, dev_path, ibdev_path
        }
        DeviceAttr = "struct ibv_device_attr" {
            fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id,
            vendor_part_id, hw_ver, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd,
            max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom,
            max_qp_init_rd_atom, max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd, max_mw,
            max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach,
            max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr,
            max_srq_sge, max_pkeys, local_ca_ack_delay, phys_port_cnt
        }
        PortAttr = "struct ibv_port_attr" {
            state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr,
            qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout,
            init_type_reply, active_width, active_speed, phys_state, link_layer, flags,
            port_cap_flags2
        }
        Pd = "struct ibv_pd" { context, handle }
        Mr = "struct ibv_mr" { context, pd, addr, length, handle, lkey, rkey }
        CompChannel = "struct ibv_comp_channel" { context, fd, refcnt }
        Cq = "struct ibv_cq" {
            context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed,
            async_events_completed
        }
        Qp = "struct ibv_qp" {
            context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex,
            cond, events_completed
        }
        QpCap = "struct ibv_qp_cap" {
            max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data
        }
        QpInitAttr = "struct ibv_qp_init_attr" {
            qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all
        }
        GlobalRoute = "struct ibv_global_route" {
            dgid, flow_label, sgid_index, hop_limit, traffic_class
        }
        AhAttr = "struct ibv_ah_attr" {
            grh, dlid, sl, src_path_bits, static_rate, is_global, port_num
        }
        QpAttr = "struct ibv_qp_attr" {
            qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num,
            qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index,
            en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer,
            port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, rate_limit
        }
        Sge = "struct ibv_sge" { addr, length, lkey }
        SendWr = "struct ibv_send_wr" {
            wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, wr, qp_type,
            tail as "bind_mw"
        }
        RecvWr = "struct ibv_recv_wr" { wr_id, next, sg_list, num_sge }
        Wc = "struct ibv_wc" {
            wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags,
            pkey_index, slid, sl, dlid_path_bits
        }
        ContextOps = "struct ibv_context_ops" { poll_cq, req_notify_cq, post_send, post_recv }
        Context = "struct ibv_context" {
            device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat
        }
    };
    all.extend(numbers![
        TRANSPORT_IWARP,
        LINK_LAYER_INFINIBAND,
        LINK_LAYER_ETHERNET,
        PORT_ACTIVE,
        GID_TYPE_ROCE_V1,
        GID_TYPE_ROCE_V2,
        ACCESS_LOCAL_WRITE,
        ACCESS_REMOTE_WRITE,
        ACCESS_REMOTE_READ,
        ACCESS_RELAXED_ORDERING,
        QPT_RC,
        QPS_INIT,
        QPS_RTR,
        QPS_RTS,
        QPS_ERR,
        QP_STATE,
        QP_ACCESS_FLAGS,
        QP_PKEY_INDEX,
        QP_PORT,
        QP_AV,
        QP_PATH_MTU,
        QP_TIMEOUT,
        QP_RETRY_CNT,
        QP_RNR_RETRY,
        QP_RQ_PSN,
        QP_MAX_QP_RD_ATOMIC,
        QP_MIN_RNR_TIMER,
        QP_SQ_PSN,
        QP_MAX_DEST_RD_ATOMIC,
        QP_DEST_QPN,
        WR_RDMA_WRITE,
        WR_RDMA_WRITE_WITH_IMM,
        WR_SEND,
        WR_SEND_WITH_IMM,
        WR_RDMA_READ,
        SEND_SIGNALED,
        SEND_INLINE,
        WC_SUCCESS,
        WC_SEND,
        WC_RDMA_WRITE,
        WC_RDMA_READ,
        WC_RECV,
        WC_RECV_RDMA_WITH_IMM,
        WC_WITH_IMM,
    ]);
    for (status, c) in super::super::completion::Status::NAMES {
        all.push(Expected {
            c: format!("IBV_WC_{c}"),
            value: u64::from(*status),
        });
    }
    all.push(Expected {
        c: "offsetof(struct ibv_send_wr, wr.rdma.rkey)".into(),
        value: (offset_of!(SendWr, wr) + offset_of!(Rdma, rkey)) as u64,
    });
    all
}

#[test]
fn layouts_and_numbers_are_those_of_the_installed_headers() {
    if !std::path::Path::new(HEADER).exists() {
        crowfly_waive::waived!("no {HEADER} (Debian: libibverbs-dev)");
    }
    let directory = tempfile::tempdir().expect("a directory");
    let (source, program) = (
        directory.path().join("layout.c"),
        directory.path().join("layout"),
    );
    let expected = expected();
    let mut c = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\nint main(void) {\n",
    );
    for one in &expected {
        let _ = writeln!(c, "printf(\"%llu\\n\", (unsigned long long)({}));", one.c);
    }
    c.push_str("return 0; }\n");
    std::fs::write(&source, c).expect("written");
    let compiled = Command::new("cc")
        .arg(&source)
        .arg("-o")
        .arg(&program)
        .status();
    match compiled {
        Err(error) => crowfly_waive::waived!("no C compiler `cc`: {error}"),
        Ok(status) => assert!(status.success(), "cc: {status}"),
    }
    let printed = Command::new(&program).output().expect("it runs");
    let printed = String::from_utf8(printed.stdout).expect("numbers");
    let printed: Vec<u64> = printed.lines().filter_map(|l| l.parse().ok()).collect();
    assert_eq!(printed.len(), expected.len());
    let wrong: Vec<String> = expected
        .iter()
        .zip(&printed)
        .filter(|(one, c)| one.value != **c)
        .map(|(one, c)| format!("{}: C has {c}, Rust has {}", one.c, one.value))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
