//! Holds the layouts against numbers worked out by hand from NCCL's headers. That a C compiler agrees,
//! and that the functions get their arguments, is shown by the player in `tests/`, a C program with
//! declarations of its own.

use std::mem::offset_of;

use super::*;

#[test]
fn a_table_has_the_functions_of_its_version_in_its_order() {
    let word = size_of::<usize>();
    assert_eq!(size_of::<NetV8>(), 19 * word);
    assert_eq!(size_of::<NetV9>(), 20 * word);
    assert_eq!(size_of::<NetV10>(), 20 * word);
    assert_eq!(size_of::<NetV11>(), 22 * word);
    assert_eq!(offset_of!(NetV8, irecv_consumed), 18 * word);
    assert_eq!(offset_of!(NetV9, make_v_device), 19 * word);
    assert_eq!(offset_of!(NetV10, isend), 10 * word);
    assert_eq!(offset_of!(NetV11, reg_mr_dma_buf), 8 * word);
    assert_eq!(offset_of!(NetV11, finalize), 20 * word);
    assert_eq!(offset_of!(NetV11, set_net_attr), 21 * word);
}

#[test]
fn properties_have_the_layout_of_their_version() {
    assert_eq!(size_of::<PropertiesV8>(), 64);
    assert_eq!(offset_of!(PropertiesV8, speed), 32);
    assert_eq!(offset_of!(PropertiesV8, latency), 40);
    assert_eq!(offset_of!(PropertiesV8, net_device_version), 56);
    assert_eq!(size_of::<VirtualDevice>(), 20);
    assert_eq!(size_of::<PropertiesV9>(), 104);
    assert_eq!(offset_of!(PropertiesV9, force_flush), 32);
    assert_eq!(offset_of!(PropertiesV9, speed), 36);
    assert_eq!(offset_of!(PropertiesV9, virtual_device), 64);
    assert_eq!(offset_of!(PropertiesV9, max_p2p_bytes), 88);
    assert_eq!(size_of::<PropertiesV11>(), 112);
    assert_eq!(offset_of!(PropertiesV11, max_multi_request_size), 104);
}
