//! What GPUs, their drivers and NICs let each other do, found out by doing it: allocate, export,
//! register, release; and reaching each other's memory. Done in a child process, because drivers
//! can hang.

use std::io::Write;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{
    DeviceMemory, Dialect, Gpu, GpuError, GpuExporter, PeerRefusal, Runtime, Stream, WriteFlush,
};
use crate::trial::{Refusal, Reporter};
use crate::verbs::{
    Access, Context, Exporter, Mapping, Pinned, Registered, Verbs, VerbsError, register_device,
};

/// How much memory is tried with.
const SAMPLE: usize = 2 << 20;

/// What a child is to find out of the GPUs of one maker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuQuestion {
    /// Whether they are AMD's rather than NVIDIA's.
    pub hip: bool,
    /// Whether RDMA devices are to register their memory.
    pub nics: bool,
}

impl GpuQuestion {
    /// Whose GPUs it is about.
    pub const fn dialect(&self) -> Dialect {
        match self.hip {
            true => Dialect::Hip,
            false => Dialect::Cuda,
        }
    }
}

impl Refusal for PeerRefusal {
    fn code(&self) -> Option<i32> {
        match self {
            Self::Failed(error) => error.answer(),
            _ => None,
        }
    }
}

impl Refusal for VerbsError {
    fn code(&self) -> Option<i32> {
        self.errno()
    }
}

/// The steps are named `runtime`, `gpus`, `gpu ADDRESS`, `copy ADDRESS`, `export ADDRESS`, `share ADDRESS`
/// (with other processes), `flush ADDRESS` (of what other devices wrote), `reach ADDRESS ADDRESS`, `data-direct NIC` (a path
/// past the CPU) and `register NIC ADDRESS`.
pub(crate) fn answer<W: Write>(question: &GpuQuestion, report: &mut Reporter<W>) {
    let verbs = || Verbs::load();
    let runtime = || Runtime::load(question.dialect());
    try_out(question, &runtime, &verbs, report);
}

/// The same with any runtime and any RDMA devices.
pub(super) fn try_out<W: Write>(
    question: &GpuQuestion,
    runtime: &dyn Fn() -> Result<Arc<Runtime>, GpuError>,
    verbs: &dyn Fn() -> Result<Verbs, VerbsError>,
    report: &mut Reporter<W>,
) {
    let version = |runtime: &Arc<Runtime>| runtime.version().unwrap_or_default().to_string();
    let Some(runtime) = report.step("runtime", runtime, version) else {
        return;
    };
    let count = |gpus: &Vec<super::Facts>| gpus.len().to_string();
    let gpus = report.step("gpus", || runtime.gpus(), count);
    let mut open: Vec<(Arc<Gpu>, Arc<DeviceMemory>)> = Vec::new();
    for facts in gpus.unwrap_or_default() {
        let at = facts.address;
        let took = report.step(
            &format!("gpu {at}"),
            || {
                let gpu = runtime.open(at)?;
                let memory = DeviceMemory::allocate(&gpu, SAMPLE)?;
                Ok::<_, GpuError>((gpu, memory))
            },
            |_| facts.name.clone(),
        );
        let Some((gpu, memory)) = took else { continue };
        report.step(
            &format!("copy {at}"),
            || Stream::new(&gpu)?.fill(&memory, 0..SAMPLE, 0)?.wait(),
            |()| "done".into(),
        );
        report.step(
            &format!("export {at}"),
            || export(&gpu, &memory),
            Clone::clone,
        );
        report.step(
            &format!("share {at}"),
            || memory.share().map_err(|error| error.to_string()),
            |_| "by a handle".into(),
        );
        report.step(&format!("flush {at}"), || flush(&gpu), Clone::clone);
        open.push((gpu, memory));
    }
    for (a, _) in &open {
        for (b, _) in open.iter().filter(|(b, _)| !Arc::ptr_eq(a, b)) {
            let step = format!("reach {} {}", a.facts().address, b.facts().address);
            report.step(&step, || a.reach(b), |()| "yes".into());
        }
    }
    if question.nics && !open.is_empty() {
        register_with_all(&open, verbs, report);
    }
}

/// What it takes for the GPU to see what other devices wrote.
fn flush(gpu: &Arc<Gpu>) -> Result<String, String> {
    match gpu.flush_writes() {
        WriteFlush::NotNeeded(why) => Ok(format!("not needed: {why}")),
        WriteFlush::Flushed => Ok("by the driver".into()),
        WriteFlush::Impossible(why) => Err(format!("{why}; a NIC can fetch a byte instead")),
    }
}

fn export(gpu: &Arc<Gpu>, memory: &Arc<DeviceMemory>) -> Result<String, String> {
    let exporter = GpuExporter::new(Arc::clone(gpu), "the GPU");
    let exported = exporter.export(memory.address(), SAMPLE as u64, Mapping::Default);
    exported
        .map(|_| "dma-buf".into())
        .map_err(|error| error.to_string())
}

fn register_with_all<W: Write>(
    gpus: &[(Arc<Gpu>, Arc<DeviceMemory>)],
    verbs: &dyn Fn() -> Result<Verbs, VerbsError>,
    report: &mut Reporter<W>,
) {
    let found = report.step(
        "nics",
        || {
            let verbs = verbs()?;
            let names = verbs.devices()?;
            Ok::<_, VerbsError>((verbs, names))
        },
        |(_, names)| names.len().to_string(),
    );
    let Some((verbs, names)) = found else { return };
    for name in names {
        let step = format!("nic {name}");
        let context = report.step(&step, || verbs.open(&name), |_| "open".into());
        let Some(context) = context else { continue };
        report.step(
            &format!("data-direct {name}"),
            || data_direct(&context),
            Clone::clone,
        );
        for (gpu, memory) in gpus {
            let step = format!("register {name} {}", gpu.facts().address);
            report.step(&step, || register(&context, gpu, memory), Clone::clone);
        }
    }
}

/// Where the NIC's path past the CPU is.
fn data_direct(context: &Arc<Context>) -> Result<String, String> {
    let domain = context.protection_domain().map_err(|e| e.to_string())?;
    let found = domain.data_direct().map_err(ToString::to_string);
    found.map(|path| path.at.clone())
}

fn register(
    context: &Arc<Context>,
    gpu: &Arc<Gpu>,
    memory: &Arc<DeviceMemory>,
) -> Result<String, String> {
    let domain = context.protection_domain().map_err(|e| e.to_string())?;
    let exporter = GpuExporter::new(Arc::clone(gpu), "the GPU");
    let pinned: Arc<dyn Pinned> = Arc::clone(memory) as _;
    let facts = gpu.facts().for_registration();
    match register_device(&domain, &pinned, &exporter, &facts, Access::ALL) {
        Ok(Registered { way, .. }) => Ok(way.to_string()),
        Err(obstacles) => {
            let whys: Vec<_> = obstacles.into_iter().map(|o| o.summary).collect();
            Err(whys.join("; "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::{FakeGpus, Model};
    use super::*;
    use crate::trial::{Answer, Step};
    use crate::verbs::fake::{Behaviour, DataDirectPath, FakeNic};

    fn steps(gpus: &FakeGpus, nic: &FakeNic) -> Vec<(String, Answer)> {
        let mut said = Vec::new();
        let question = GpuQuestion {
            nics: true,
            ..GpuQuestion::default()
        };
        let mut report = Reporter::new(&mut said);
        let verbs = || Ok(nic.verbs());
        try_out(&question, &|| gpus.runtime(), &verbs, &mut report);
        let lines = said
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty());
        let steps = lines.map(|line| serde_json::from_slice::<Step>(line).expect("a step"));
        let ended = steps.filter(|step| step.answer != Answer::Began);
        ended.map(|step| (step.step, step.answer)).collect()
    }

    fn of<'s>(steps: &'s [(String, Answer)], name: &str) -> &'s Answer {
        let found = steps.iter().find(|(step, _)| step == name);
        &found
            .unwrap_or_else(|| panic!("no step {name}: {steps:?}"))
            .1
    }

    #[test]
    fn given_gpus_and_a_nic_every_pair_is_tried_and_everything_released() {
        let nic = FakeNic::plug("trial0", Behaviour::default());
        let gpus = FakeGpus::cuda(2);
        let steps = steps(&gpus, &nic);
        let done = |text: &str| Answer::Done(text.to_owned());
        assert_eq!(of(&steps, "gpus"), &done("2"));
        for at in ["0000:10:00.0", "0000:11:00.0"] {
            assert_eq!(of(&steps, &format!("export {at}")), &done("dma-buf"));
            assert_eq!(of(&steps, &format!("share {at}")), &done("by a handle"));
            let ordered = "not needed: the driver says that the GPU sees writes in order";
            assert_eq!(of(&steps, &format!("flush {at}")), &done(ordered));
            assert_eq!(
                of(&steps, &format!("register trial0 {at}")),
                &done("dma-buf")
            );
        }
        for (from, to) in [("10", "11"), ("11", "10")] {
            let step = format!("reach 0000:{from}:00.0 0000:{to}:00.0");
            assert_eq!(of(&steps, &step), &done("yes"));
        }
        let Answer::Refused { why, .. } = of(&steps, "data-direct trial0") else {
            panic!("{steps:?}")
        };
        assert_eq!(why, "it has none (it is none of mlx5's)");
        assert_eq!((gpus.alive(), nic.regions()), (0, 0));
    }

    #[test]
    fn given_a_nic_with_a_path_past_the_cpu_gpus_register_by_it_and_where_it_is_is_told() {
        let behaviour = Behaviour {
            data_direct: DataDirectPath::There,
            ..Behaviour::default()
        };
        let nic = FakeNic::plug("trial2", behaviour);
        let gpus = FakeGpus::cuda(1);
        let steps = steps(&gpus, &nic);
        let done = |text: &str| Answer::Done(text.to_owned());
        let at = "/devices/pci0000:00/0000:0a:00.0";
        assert_eq!(of(&steps, "data-direct trial2"), &done(at));
        let registered = of(&steps, "register trial2 0000:10:00.0");
        assert_eq!(registered, &done("dma-buf, data-direct"));
        assert!(gpus.exported().iter().any(|exported| exported.pcie));
        assert_eq!((gpus.alive(), nic.regions()), (0, 0));
    }

    #[test]
    fn given_refusals_each_is_told_where_it_was_met_and_the_rest_goes_on() {
        let refusing = Behaviour {
            dma_buf: Some(libc::EOPNOTSUPP),
            register: Some(libc::EFAULT),
            ..Behaviour::default()
        };
        let nic = FakeNic::plug("trial1", refusing);
        let alone = Model {
            reachable: false,
            ..Model::default()
        };
        let gpus = FakeGpus::plug(Dialect::Cuda, &[alone, Model::default()]);
        gpus.fail("cuMemGetHandleForAddressRange", 0, 801);
        gpus.fail("cuIpcGetMemHandle", 0, 801);
        let steps = steps(&gpus, &nic);
        let why = |name: &str| match of(&steps, name) {
            Answer::Refused { why, .. } => why.clone(),
            other => panic!("{name}: {other:?}"),
        };
        assert!(why("export 0000:10:00.0").contains("801"));
        assert!(why("share 0000:10:00.0").contains("cuIpcGetMemHandle"));
        assert!(why("reach 0000:10:00.0 0000:11:00.0").contains("cuDeviceCanAccessPeer"));
        assert!(why("register trial1 0000:11:00.0").contains("does not take dma-bufs"));
        assert_eq!(
            of(&steps, "reach 0000:11:00.0 0000:10:00.0"),
            &Answer::Done("yes".into())
        );
    }
}
