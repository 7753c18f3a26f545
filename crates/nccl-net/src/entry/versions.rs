//! The tables that NCCL looks for by name. It takes the newest that it knows.

use super::*;
use crate::abi::{NetV8, NetV9, NetV10, NetV11};

/// For NCCL 2.20 and later.
#[unsafe(no_mangle)]
pub static ncclNetPlugin_v8: NetV8 = NetV8 {
    name: NAME,
    init,
    devices,
    get_properties: get_properties_v8,
    listen,
    connect,
    accept,
    reg_mr,
    reg_mr_dma_buf,
    dereg_mr,
    isend: isend::<c_int>,
    irecv: irecv::<c_int>,
    iflush,
    test,
    close_send: close_comm,
    close_recv: close_comm,
    close_listen,
    get_device_mr,
    irecv_consumed,
};

/// For NCCL 2.24 and later.
#[unsafe(no_mangle)]
pub static ncclNetPlugin_v9: NetV9 = NetV9 {
    name: NAME,
    init,
    devices,
    get_properties: get_properties_v9,
    listen,
    connect,
    accept,
    reg_mr,
    reg_mr_dma_buf,
    dereg_mr,
    isend: isend::<usize>,
    irecv: irecv::<usize>,
    iflush,
    test,
    close_send: close_comm,
    close_recv: close_comm,
    close_listen,
    get_device_mr,
    irecv_consumed,
    make_v_device,
};

/// For NCCL 2.26 and later.
#[unsafe(no_mangle)]
pub static ncclNetPlugin_v10: NetV10 = NetV10 {
    name: NAME,
    init: init_v10,
    devices,
    get_properties: get_properties_v9,
    listen,
    connect: connect_v10,
    accept,
    reg_mr,
    reg_mr_dma_buf,
    dereg_mr,
    isend: isend_v10,
    irecv: irecv_v10,
    iflush,
    test,
    close_send: close_comm,
    close_recv: close_comm,
    close_listen,
    get_device_mr,
    irecv_consumed,
    make_v_device,
};

/// For NCCL 2.28 and later.
#[unsafe(no_mangle)]
pub static ncclNetPlugin_v11: NetV11 = NetV11 {
    name: NAME,
    init: init_v11,
    devices,
    get_properties: get_properties_v11,
    listen: listen_v11,
    connect: connect_v11,
    accept,
    reg_mr,
    reg_mr_dma_buf,
    dereg_mr,
    isend: isend_v10,
    irecv: irecv_v10,
    iflush,
    test,
    close_send: close_comm,
    close_recv: close_comm,
    close_listen,
    get_device_mr,
    irecv_consumed,
    make_v_device,
    finalize,
    set_net_attr,
};
