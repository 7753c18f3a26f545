//! Reports of `gdscheck -p`.

use crowfly_doctor::evidence::gdscheck::{GdsCheck, Support, Verification};
use crowfly_doctor::evidence::{Artefact, LineNumber, read};

fn report(text: &str) -> GdsCheck {
    let sections = read("gds.txt", text.as_bytes()).sections;
    match sections
        .into_iter()
        .map(|s| s.artefact)
        .collect::<Vec<_>>()
        .as_slice()
    {
        [Artefact::GdsCheck(report)] => (**report).clone(),
        other => panic!("not one report: {other:?}"),
    }
}

const REPORT: &str = "\
 GDS release version: 1.12.1.3
 nvidia_fs version:  2.22 libcufile version: 2.12
 Platform: x86_64
 ============
 ENVIRONMENT:
 ============
 =====================
 DRIVER CONFIGURATION:
 =====================
 NVMe P2PDMA        : Unsupported
 NVMe               : Supported
 NFS                : compat
 Userspace RDMA     : Unsupported
 --Mellanox PeerDirect : Disabled
 --rdma_device_status  : Up: 0 Down: 0
 =====================
 CUFILE CONFIGURATION:
 =====================
 properties.use_pci_p2pdma : false
 properties.use_compat_mode : true
 fs.lustre.posix_gds_min_kb: 0
 =========
 GPU INFO:
 =========
 GPU index 0 NVIDIA L40S bar:1 bar size (MiB):65536 supports GDS, IOMMU State: Disabled
 ==============
 PLATFORM INFO:
 ==============
 IOMMU: disabled
 Nvidia Driver Info Status: Supported(Nvidia Open Driver Installed)
 Cuda Driver Version Installed:  12080
 Platform: Box 9000, Arch: x86_64(Linux 6.8.0-45-generic)
 Platform verification succeeded
";

#[test]
fn given_a_report_then_every_section_reads() {
    let report = report(REPORT);
    let text =
        |l: &Option<crowfly_doctor::evidence::Located<String>>| l.as_ref().map(|l| l.value.clone());
    assert_eq!(text(&report.release).as_deref(), Some("1.12.1.3"));
    assert_eq!(text(&report.nvidia_fs).as_deref(), Some("2.22"));
    assert_eq!(text(&report.libcufile).as_deref(), Some("2.12"));
    let support = |name| report.driver(name).map(|d| d.value.support);
    assert_eq!(support("nvme"), Some(Support::Supported));
    assert_eq!(support("NVMe P2PDMA"), Some(Support::Unsupported));
    assert_eq!(support("NFS"), Some(Support::Compat));
    assert_eq!(support("WekaFS"), None);
    assert_eq!(
        report.rdma[0].value,
        ("Mellanox PeerDirect".into(), "Disabled".into())
    );
    let config = report.config("properties.use_compat_mode").unwrap();
    assert_eq!((config.value, config.cite.line), ("true", LineNumber(20)));
    let gpu = &report.gpus[0].value;
    assert_eq!(
        (gpu.index, gpu.name.as_str(), gpu.bar1_mib),
        (0, "NVIDIA L40S", Some(65_536))
    );
    assert!(gpu.supported);
    assert_eq!(gpu.iommu.as_deref(), Some("Disabled"));
    assert_eq!(text(&report.iommu).as_deref(), Some("disabled"));
    assert_eq!(
        text(&report.platform).as_deref(),
        Some("Box 9000, Arch: x86_64(Linux 6.8.0-45-generic)")
    );
    assert_eq!(
        report.verification.map(|v| v.value),
        Some(Verification::Succeeded)
    );
}

#[test]
fn given_a_failed_platform_then_supported_drivers_do_not_hide_it() {
    let report = report(
        "\
    GDS release version (beta): 0.9.1.5
    nvidia_fs version:  2.4 libcufile version: 2.3
    cuFile CONFIGURATION:
    NVMe           : Supported
    GPU INFO:
    GPU 0 Quadro K1200 does not have supported architecture, has 5 requires >= 6
    Platform does not have any supported GPU!
    Platform verification failed
    cufile initialization failed
    Platform verification error :
    GPUDirect Storage not supported on current platform
",
    );
    assert_eq!(report.release.map(|r| r.value).as_deref(), Some("0.9.1.5"));
    assert_eq!(
        report.verification.map(|v| v.value),
        Some(Verification::Failed)
    );
    assert_eq!(report.drivers[0].value.support, Support::Supported);
    assert_eq!(
        (
            report.gpus[0].value.name.as_str(),
            report.gpus[0].value.supported
        ),
        ("Quadro K1200", false)
    );
    assert_eq!(report.errors.len(), 4);
}

#[test]
fn given_no_module_and_no_gpu_then_absence_is_told_from_a_version() {
    let report = report(
        "\
 No GPU found in the system, use this library only for sysmem
 GDS release version: 1.18.0
 nvidia_fs minimum version: 2.12
 DRIVER CONFIGURATION:
 NVMe               : compat
",
    );
    assert_eq!(report.nvidia_fs, None);
    assert_eq!(
        report.nvidia_fs_minimum.map(|m| m.value).as_deref(),
        Some("2.12")
    );
    assert!(report.no_gpu.is_some());
    assert_eq!(report.drivers[0].value.support, Support::Compat);
    assert_eq!(report.verification, None);
}

#[test]
fn given_a_clipped_report_then_what_is_there_reads() {
    let report = report(
        " NVMe               : Supported\n ...\n IOMMU: enabled\n Platform verification succeeded\n",
    );
    assert_eq!(report.release, None);
    assert_eq!(report.iommu.map(|i| i.value).as_deref(), Some("enabled"));
}

#[test]
fn given_another_program_that_says_supported_then_it_is_no_report() {
    let document = read("x", b"Display Mode : Supported\nMIG : Unsupported\n");
    assert_eq!(document.sections, []);
    assert_eq!(document.unread.lines, 2);
}

#[test]
fn given_a_lock_file_named_gds_then_it_has_nothing_to_do_with_gpudirect_storage() {
    let document = read(
        "x",
        b"[n1:77] PMIX ERROR: ERROR in file gds_ds12_lock_pthread.c at line 168\n",
    );
    assert_eq!(document.sections, []);
}
