//! Each refusal of a driver or kernel, injected below the production code.

use std::cell::RefCell;

use crowfly_route::obstacle::Effect;
use proptest::prelude::*;

use super::super::fake::{Asked, Behaviour, DataDirectPath, FakeNic, Library};
use super::*;

/// Device memory by its address only: it is never touched here.
struct DeviceMemory {
    address: u64,
    len: usize,
}

// SAFETY: nothing is mapped there and nothing is posted on it.
unsafe impl Pinned for DeviceMemory {
    fn address(&self) -> u64 {
        self.address
    }
    fn len(&self) -> usize {
        self.len
    }
}

/// A driver that exports memory files named after the mapping, or refuses.
#[derive(Default)]
struct Driver {
    pcie: bool,
    refuses_pcie: Option<i32>,
    refuses: Option<i32>,
    exported: RefCell<Vec<(u64, u64, Mapping)>>,
}

impl Exporter for Driver {
    fn owner(&self) -> &str {
        "GPU 0"
    }

    fn prefers_pcie_mapping(&self) -> bool {
        self.pcie
    }

    fn export(&self, start: u64, len: u64, mapping: Mapping) -> Result<OwnedFd, ExportError> {
        self.exported.borrow_mut().push((start, len, mapping));
        let refused = match mapping {
            Mapping::Pcie => self.refuses_pcie.or(self.refuses),
            Mapping::Default => self.refuses,
        };
        if let Some(code) = refused {
            return Err(ExportError {
                call: "cuMemGetHandleForAddressRange",
                code,
                meaning: "refused".into(),
            });
        }
        let name = if mapping == Mapping::Pcie {
            "pcie"
        } else {
            "plain"
        };
        let file = rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC);
        Ok(file.expect("a memory file"))
    }
}

/// 64 MiB that start in the middle of a page: stitched of many allocations, as far as a driver
/// knows.
const ADDRESS: u64 = 0x7f00_0010_0200;
const LEN: usize = 64 << 20;

fn device_memory() -> Arc<dyn Pinned> {
    Arc::new(DeviceMemory {
        address: ADDRESS,
        len: LEN,
    })
}

fn hopper() -> GpuFacts {
    GpuFacts {
        compute_capability: Some((9, 0)),
        coherent_link: false,
    }
}

struct Rig {
    nic: FakeNic,
    domain: Arc<ProtectionDomain>,
}

fn rig(name: &str, behaviour: Behaviour) -> Rig {
    let nic = FakeNic::plug(name, behaviour);
    let context = nic.verbs().open(name).expect("it is plugged in");
    let domain = context.protection_domain().expect("a domain");
    Rig { nic, domain }
}

impl Rig {
    fn device(&self, driver: &Driver) -> Result<Registered, Vec<Obstacle>> {
        register_device(
            &self.domain,
            &device_memory(),
            driver,
            &hopper(),
            Access::ALL,
        )
    }

    fn codes(&self, driver: &Driver) -> Vec<Code> {
        let obstacles = self.device(driver).expect_err("refused");
        for obstacle in &obstacles {
            assert_eq!(obstacle.effect, Effect::Blocks);
            assert!(!obstacle.evidence.is_empty(), "{obstacle:?}");
        }
        assert_eq!(self.nic.regions(), 0, "nothing is left behind");
        obstacles.iter().map(|o| o.code).collect()
    }
}

fn open_files() -> usize {
    let names = std::fs::read_dir("/proc/self/fd").expect("procfs");
    names
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter(|name| name.to_string_lossy().contains("exported-once"))
        .count()
}

#[test]
fn given_a_gpu_the_pages_around_the_requested_range_are_exported_and_its_addresses_kept() {
    let rig = rig("pages", Behaviour::default());
    let driver = Driver::default();
    let done = rig.device(&driver).expect("registered");
    assert_eq!(done.way, Way::DmaBuf(Mapping::Default));
    assert!(done.relaxed_ordering);
    assert!(matches!(done.flush, Flush::NotNeeded(_)));
    assert_eq!(done.obstacles, []);
    let whole = (LEN as u64) + 4096;
    assert_eq!(
        *driver.exported.borrow(),
        [(0x7f00_0010_0000, whole, Mapping::Default)]
    );
    let asked = rig.nic.asked();
    let expected = Asked {
        call: "ibv_reg_dmabuf_mr",
        offset: 0x200,
        len: LEN,
        iova: ADDRESS,
        relaxed: true,
    };
    assert_eq!(asked.last(), Some(&expected));
    assert_eq!(done.region.address(), ADDRESS);
}

#[test]
fn the_descriptor_is_closed_once_the_region_is_registered() {
    struct Once;
    impl Exporter for Once {
        fn owner(&self) -> &str {
            "GPU 0"
        }
        fn export(&self, _: u64, _: u64, _: Mapping) -> Result<OwnedFd, ExportError> {
            let flags = rustix::fs::MemfdFlags::CLOEXEC;
            Ok(rustix::fs::memfd_create("exported-once", flags).expect("a memory file"))
        }
    }
    let rig = rig("closed", Behaviour::default());
    let memory = device_memory();
    let done = register_device(&rig.domain, &memory, &Once, &hopper(), Access::ALL);
    assert!(done.is_ok());
    assert_eq!(open_files(), 0);
}

#[test]
fn given_a_gpu_on_a_coherent_link_the_pcie_mapping_is_used() {
    let rig = rig("direct", Behaviour::default());
    let driver = Driver {
        pcie: true,
        ..Driver::default()
    };
    let done = rig.device(&driver).expect("registered");
    assert_eq!(done.way, Way::DmaBuf(Mapping::Pcie));
    assert_eq!(done.obstacles, []);
}

#[test]
fn given_error_801_for_the_pcie_mapping_the_default_one_is_used_and_it_is_said() {
    let rig = rig("flag801", Behaviour::default());
    let driver = Driver {
        pcie: true,
        refuses_pcie: Some(ExportError::NOT_SUPPORTED),
        ..Driver::default()
    };
    let done = rig.device(&driver).expect("registered");
    assert_eq!(done.way, Way::DmaBuf(Mapping::Default));
    let [note] = done.obstacles.as_slice() else {
        panic!("{:?}", done.obstacles);
    };
    assert_eq!(
        (note.code, note.effect),
        (Code::NoPcieMapping, Effect::Slows)
    );
    assert!(note.evidence[0].shows.contains("801"), "{note:?}");
}

#[test]
fn given_einval_when_the_pcie_mapping_is_registered_the_default_one_is_used_and_it_is_said() {
    let behaviour = Behaviour {
        dma_buf_pcie_invalid: true,
        ..Behaviour::default()
    };
    let rig = rig("flag22", behaviour);
    let driver = Driver {
        pcie: true,
        ..Driver::default()
    };
    let done = rig.device(&driver).expect("registered");
    assert_eq!(done.way, Way::DmaBuf(Mapping::Default));
    let codes: Vec<Code> = done.obstacles.iter().map(|o| o.code).collect();
    assert!(codes.contains(&Code::NoPcieMapping), "{codes:?}");
}

fn with_path(name: &str, data_direct: DataDirectPath) -> Rig {
    rig(
        name,
        Behaviour {
            data_direct,
            ..Behaviour::default()
        },
    )
}

/// By which calls dma-bufs were registered, and in which order.
fn calls(rig: &Rig) -> Vec<&'static str> {
    let asked = rig.nic.asked().into_iter().map(|asked| asked.call);
    asked.filter(|call| call.contains("dmabuf")).collect()
}

#[test]
fn given_a_nic_with_a_data_direct_path_memory_is_mapped_by_pcie_and_registered_for_it() {
    let rig = with_path("direct", DataDirectPath::There);
    let driver = Driver::default();
    let done = rig.device(&driver).expect("registered");
    assert_eq!(done.way, Way::DataDirect);
    assert_eq!(done.obstacles, []);
    assert!(done.relaxed_ordering);
    assert!(
        matches!(done.flush, Flush::SplitPaths(_)),
        "{:?}",
        done.flush
    );
    assert_eq!(calls(&rig), ["mlx5dv_reg_dmabuf_mr"]);
    assert_eq!(driver.exported.borrow()[0].2, Mapping::Pcie);
    let asked = rig.nic.asked().pop().expect("registered");
    assert_eq!((asked.offset, asked.len, asked.iova), (0x200, LEN, ADDRESS));
    drop(done);
    assert_eq!(rig.nic.regions(), 0);
}

#[test]
fn given_that_the_data_direct_path_is_refused_the_next_best_way_is_taken_and_it_is_said() {
    // (the GPU is on a coherent link, the driver's answer to the PCIe mapping, the way, the calls)
    let plain = ["mlx5dv_reg_dmabuf_mr", "ibv_reg_dmabuf_mr"];
    let cases: [(bool, Option<i32>, Way, &[&str]); 4] = [
        (false, None, Way::DmaBuf(Mapping::Default), &plain),
        (true, None, Way::DmaBuf(Mapping::Pcie), &plain),
        (
            false,
            Some(ExportError::NOT_SUPPORTED),
            Way::DmaBuf(Mapping::Default),
            &plain[1..],
        ),
        (
            true,
            Some(ExportError::NOT_SUPPORTED),
            Way::DmaBuf(Mapping::Default),
            &plain[1..],
        ),
    ];
    for (at, (pcie, refuses_pcie, way, expected)) in cases.into_iter().enumerate() {
        let rig = with_path(
            &format!("next{at}"),
            DataDirectPath::Refused(libc::EOPNOTSUPP),
        );
        let driver = Driver {
            pcie,
            refuses_pcie,
            ..Driver::default()
        };
        let done = rig.device(&driver).expect("registered");
        assert_eq!(done.way, way, "{at}");
        assert_eq!(calls(&rig), expected, "{at}");
        let first = done.obstacles.first().expect("it is said");
        assert_eq!(
            (first.code, first.effect),
            (Code::NoPcieMapping, Effect::Slows)
        );
        assert!(first.summary.contains("data-direct"), "{}", first.summary);
        let why = if refuses_pcie.is_some() {
            "801"
        } else {
            "mlx5dv_reg_dmabuf_mr"
        };
        assert!(first.evidence[0].shows.contains(why), "{first:?}");
    }
}

#[test]
fn what_has_no_data_direct_path_is_registered_as_ever_and_nothing_is_said_of_it() {
    for (at, path) in [DataDirectPath::OtherMaker, DataDirectPath::Absent]
        .into_iter()
        .enumerate()
    {
        let rig = with_path(&format!("without{at}"), path);
        let Err(NoDataDirect::Absent(_)) = rig.domain.data_direct() else {
            panic!("{:?}", rig.domain.data_direct())
        };
        let done = rig.device(&Driver::default()).expect("registered");
        assert_eq!(done.way, Way::DmaBuf(Mapping::Default));
        assert_eq!(done.obstacles, []);
        assert_eq!(calls(&rig), ["ibv_reg_dmabuf_mr"]);
    }
}

#[test]
fn given_a_libmlx5_that_is_too_old_it_is_not_claimed_that_the_nic_has_no_data_direct_path() {
    let behaviour = Behaviour {
        data_direct: DataDirectPath::There,
        dma_buf_pcie_invalid: true,
        ..Behaviour::default()
    };
    let nic = FakeNic::plug("oldlib", behaviour);
    let old = nic.verbs_of(Library {
        iova2: true,
        dma_buf: true,
        mlx5: false,
    });
    let domain = old
        .open("oldlib")
        .and_then(|context| context.protection_domain());
    let domain = domain.expect("a domain");
    let Err(NoDataDirect::Unknown(error)) = domain.data_direct() else {
        panic!("{:?}", domain.data_direct())
    };
    assert_eq!(error.code(), "unsupported");
    let rig = Rig { nic, domain };
    let driver = Driver {
        pcie: true,
        ..Driver::default()
    };
    let done = rig.device(&driver).expect("registered");
    assert_eq!(done.way, Way::DmaBuf(Mapping::Default));
    let note = &done.obstacles[0];
    let mut shown = note.evidence.iter().map(|evidence| evidence.shows.as_str());
    assert!(
        shown.any(|shows| shows.contains("mlx5dv_reg_dmabuf_mr@MLX5_1.25")),
        "{note:?}"
    );
}

#[test]
fn given_a_nic_without_dma_bufs_the_peer_memory_client_is_used_and_it_is_said() {
    let behaviour = Behaviour {
        dma_buf: Some(libc::EOPNOTSUPP),
        ..Behaviour::default()
    };
    let rig = rig("peermem", behaviour);
    let done = rig.device(&Driver::default()).expect("registered");
    assert_eq!(done.way, Way::PeerClient);
    let codes: Vec<Code> = done.obstacles.iter().map(|o| o.code).collect();
    assert_eq!(codes, [Code::NicWithoutDmaBuf]);
}

#[test]
fn every_error_number_of_both_ways_becomes_its_obstacle() {
    let cases = [
        (
            libc::EOPNOTSUPP,
            libc::EFAULT,
            [Code::NicWithoutDmaBuf, Code::NoPeerMemoryClient],
        ),
        (
            libc::EPROTONOSUPPORT,
            libc::EINVAL,
            [Code::NicWithoutDmaBuf, Code::NoPeerMemoryClient],
        ),
        (
            libc::ENOSYS,
            libc::EFAULT,
            [Code::NicWithoutDmaBuf, Code::NoPeerMemoryClient],
        ),
        (
            libc::EREMOTEIO,
            libc::EFAULT,
            [Code::PeerDmaRefused, Code::NoPeerMemoryClient],
        ),
        (
            libc::ENXIO,
            libc::EFAULT,
            [Code::PeerDmaRefused, Code::NoPeerMemoryClient],
        ),
        (
            libc::EIO,
            libc::EFAULT,
            [Code::PeerDmaRefused, Code::NoPeerMemoryClient],
        ),
        (
            libc::ENOMEM,
            libc::ENOMEM,
            [Code::RegistrationExhausted, Code::RegistrationExhausted],
        ),
        (
            libc::ENOSPC,
            libc::EFAULT,
            [Code::RegistrationExhausted, Code::NoPeerMemoryClient],
        ),
        (
            libc::EPERM,
            libc::EACCES,
            [Code::RegistrationDenied, Code::RegistrationDenied],
        ),
        (
            libc::EINVAL,
            libc::EBUSY,
            [Code::RegistrationRefused, Code::RegistrationRefused],
        ),
    ];
    for (dma_buf, register, expected) in cases {
        let behaviour = Behaviour {
            dma_buf: Some(dma_buf),
            register: Some(register),
            ..Behaviour::default()
        };
        let rig = rig("errnos", behaviour);
        assert_eq!(
            rig.codes(&Driver::default()),
            expected,
            "{dma_buf} {register}"
        );
    }
}

#[test]
fn given_a_driver_that_does_not_export_it_is_the_drivers_obstacle_and_not_the_nics() {
    let behaviour = Behaviour {
        register: Some(libc::EFAULT),
        ..Behaviour::default()
    };
    let rig = rig("no_export", behaviour);
    let driver = Driver {
        refuses: Some(ExportError::NOT_SUPPORTED),
        ..Driver::default()
    };
    let expected = [Code::DmaBufExportRefused, Code::NoPeerMemoryClient];
    assert_eq!(rig.codes(&driver), expected);
    assert!(
        !rig.nic
            .asked()
            .iter()
            .any(|a| a.call == "ibv_reg_dmabuf_mr")
    );
}

#[test]
fn given_an_old_library_it_is_the_librarys_obstacle() {
    let behaviour = Behaviour {
        register: Some(libc::EFAULT),
        ..Behaviour::default()
    };
    let nic = FakeNic::plug("old_library", behaviour);
    let old = Library {
        iova2: true,
        dma_buf: false,
        mlx5: true,
    };
    let context = nic.verbs_of(old).open("old_library").expect("plugged in");
    let domain = context.protection_domain().expect("a domain");
    let memory = device_memory();
    let refused = register_device(&domain, &memory, &Driver::default(), &hopper(), Access::ALL);
    let obstacles = refused.expect_err("no way is left");
    assert_eq!(obstacles[0].code, Code::NoVerbsLibrary);
    assert!(
        obstacles[0].evidence[0]
            .shows
            .contains("ibv_reg_dmabuf_mr@IBVERBS_1.12")
    );
}

#[test]
fn given_a_nic_without_relaxed_ordering_registration_works_and_it_is_said() {
    let behaviour = Behaviour {
        relaxed: Some(libc::EOPNOTSUPP),
        ..Behaviour::default()
    };
    let rig = rig("strict", behaviour);
    let done = rig.device(&Driver::default()).expect("registered");
    assert!(!done.relaxed_ordering);
    let [note] = done.obstacles.as_slice() else {
        panic!("{:?}", done.obstacles);
    };
    assert_eq!(
        (note.code, note.effect),
        (Code::RelaxedOrderingOff, Effect::Slows)
    );
}

#[test]
fn memory_that_is_watched_for_what_peers_write_is_registered_in_order() {
    let rig = rig("ordered", Behaviour::default());
    let memory = device_memory();
    let done = register_host_ordered(&rig.domain, &memory, Access::ALL).expect("registered");
    assert!(!done.relaxed_ordering && done.obstacles.is_empty());
    let asked = rig.nic.asked();
    assert_eq!(asked.last().map(|asked| asked.relaxed), Some(false));
    rig.nic.behave(|nic| nic.register = Some(libc::EFAULT));
    let obstacles = register_host_ordered(&rig.domain, &memory, Access::ALL).expect_err("refused");
    let codes: Vec<Code> = obstacles.iter().map(|o| o.code).collect();
    assert_eq!(codes, [Code::RegistrationRefused]);
}

#[test]
fn host_memory_is_registered_by_its_address_and_refusals_name_what_stopped_them() {
    let rig = rig("host", Behaviour::default());
    let memory = device_memory();
    let done = register_host(&rig.domain, &memory, Access::ALL).expect("registered");
    assert_eq!((done.way, done.relaxed_ordering), (Way::Host, true));
    assert_eq!(rig.nic.regions(), 1);
    drop(done);
    assert_eq!(rig.nic.regions(), 0);
    for (errno, code) in [
        (libc::EFAULT, Code::RegistrationRefused),
        (libc::EPERM, Code::RegistrationDenied),
    ] {
        rig.nic.behave(|nic| nic.register = Some(errno));
        let obstacles = register_host(&rig.domain, &memory, Access::ALL).expect_err("refused");
        assert_eq!(obstacles.last().map(|o| o.code), Some(code), "{errno}");
    }
    rig.nic.behave(|nic| nic.register = Some(libc::ENOMEM));
    let obstacles = register_host(&rig.domain, &memory, Access::ALL).expect_err("refused");
    let last = obstacles.last().expect("one");
    assert!(
        matches!(
            last.code,
            Code::MemlockTooSmall | Code::RegistrationExhausted
        ),
        "{last:?}"
    );
    assert!(
        last.evidence.iter().any(|e| e.at == "RLIMIT_MEMLOCK"),
        "{last:?}"
    );
}

proptest! {
    #[test]
    fn the_exported_pages_hold_the_range_and_nothing_but_its_pages(
        address in 0u64..1 << 47,
        len in 1usize..1 << 40,
    ) {
        let page = 4096;
        let pages = Pages::around(address, len, page);
        prop_assert_eq!(pages.start % page, 0);
        prop_assert_eq!(pages.len % page, 0);
        prop_assert_eq!(pages.start + pages.offset, address);
        prop_assert!(pages.offset < page);
        let end = address + len as u64;
        prop_assert!(pages.start + pages.len >= end);
        prop_assert!(pages.start + pages.len - end < page);
    }
}
