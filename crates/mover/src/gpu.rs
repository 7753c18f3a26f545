//! GPUs as the engine uses them: one to load into or to save from, with the storage library of its
//! maker where that goes straight; and copies between memories of GPUs and the host.
//!
//! [`Gpu::open`] takes a GPU; [`Gpu::find_storage`] finds out, in a child process, whether its
//! maker's storage library goes straight for a file, and says why not. [`copy()`] moves a loaded
//! region to another GPU or to host memory. [`PlainCopy`] is what rates are held against. [`queued`] puts transfers into the order of a stream, so
//! that a kernel can follow a load without the host waiting in between.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use crowfly_machine::gpu::{Dialect, Facts, Gpu as Device, GpuError, GpuExporter, Runtime};
use crowfly_machine::gpu_storage::probe::{Mode, Probe, StorageQuestion};
use crowfly_machine::gpu_storage::{Compat, Driver, Functions};
use crowfly_machine::trial::Trial;
use crowfly_machine::verbs::{Exporter, GpuFacts};
use crowfly_route::obstacle::{Code, Fix, Obstacle};
use crowfly_route::place::Place;
use crowfly_route::receipt::Path as EnginePath;
use crowfly_route::units::PciAddress;

mod copy;
mod plain;
pub mod queued;
mod sample;

pub use copy::{CopyRequest, To, copy};
pub(crate) use copy::{no_peer_access, pin};
pub use crowfly_machine::gpu::{DeviceMemory, Stream};
pub use plain::PlainCopy;
pub use sample::{Sample, digest_of};

/// A GPU, open for transfers.
#[derive(Debug)]
pub struct Gpu {
    index: u32,
    device: Arc<Device>,
    storage: Option<Arc<Driver>>,
    obstacles: Vec<Obstacle>,
}

/// The same device, open once.
impl PartialEq for Gpu {
    fn eq(&self, other: &Self) -> bool {
        self.index == other.index && Arc::ptr_eq(&self.device, &other.device)
    }
}

impl Eq for Gpu {}

impl Gpu {
    /// Opens the GPU at an address by the runtime that shows it, as number `index` in PCI address
    /// order.
    ///
    /// # Errors
    /// Why no runtime does.
    pub fn open(index: u32, address: PciAddress) -> Result<Self, Vec<Obstacle>> {
        let mut refused = Vec::new();
        for dialect in Dialect::ALL {
            match Runtime::load(dialect).and_then(|runtime| runtime.open(address)) {
                Ok(device) => return Ok(Self::over(index, device)),
                Err(error) => refused.push(no_runtime(&Place::Gpu(index), dialect, &error)),
            }
        }
        Err(refused)
    }

    /// Opens the GPU number `index`, in PCI address order, of those that a runtime shows this
    /// process.
    ///
    /// # Errors
    /// Why there is none.
    pub fn nth(index: u32) -> Result<Self, Vec<Obstacle>> {
        Self::shown(&Place::Gpu(index), |gpus| {
            gpus.get(index as usize).map(|gpu| (index, gpu.address))
        })
    }

    /// Opens the GPU that its runtime, and every library on top of it, calls number `ordinal` in this
    /// process. `number` knows the GPUs of the machine by address; one that it does not know is
    /// counted among those that the runtime shows.
    ///
    /// # Errors
    /// Why there is none.
    pub fn by_ordinal(
        ordinal: i32,
        number: impl Fn(PciAddress) -> Option<u32>,
    ) -> Result<Self, Vec<Obstacle>> {
        let asked = format!("device {ordinal}");
        Self::shown(&asked, |gpus| {
            let mut counted = (0..).zip(gpus);
            let (nth, gpu) = counted.find(|(_, gpu)| gpu.ordinal() == ordinal)?;
            Some((number(gpu.address).unwrap_or(nth), gpu.address))
        })
    }

    /// Opens one of the GPUs that a runtime shows this process, in PCI address order: its number and
    /// address are what `choose` says.
    fn shown(
        asked: &dyn fmt::Display,
        choose: impl Fn(&[Facts]) -> Option<(u32, PciAddress)>,
    ) -> Result<Self, Vec<Obstacle>> {
        let mut refused = Vec::new();
        for dialect in Dialect::ALL {
            let shown = Runtime::load(dialect).and_then(|runtime| {
                let gpus = runtime.gpus()?;
                let open = |(index, address)| Ok((index, runtime.open(address)?));
                Ok(choose(&gpus).map(open).transpose()?.ok_or(gpus.len()))
            });
            match shown {
                Ok(Ok((index, device))) => return Ok(Self::over(index, device)),
                Ok(Err(count)) => refused.push(
                    Obstacle::blocks(Code::NoGpu, format!("{dialect} shows no {asked}"))
                        .seen(dialect.to_string(), format!("{count} GPUs")),
                ),
                Err(error) => refused.push(no_runtime(asked, dialect, &error)),
            }
        }
        Err(refused)
    }

    /// A GPU that is open already.
    pub const fn over(index: u32, device: Arc<Device>) -> Self {
        Self {
            index,
            device,
            storage: None,
            obstacles: Vec::new(),
        }
    }

    /// Finds out, in a child process, whether the storage library of the GPU's maker brings the
    /// bytes of files like `file` straight into its memory, and opens it in this process if so.
    /// Where it does not, [`Gpu::storage_obstacles`] say why, and loads are staged.
    #[must_use]
    pub fn find_storage(self, trial: &Trial, file: &Path) -> Self {
        let question = StorageQuestion {
            hip: self.device.runtime().dialect() == Dialect::Hip,
            library: None,
            file: Some(file.to_owned()),
            gpu: Some(self.device.facts().address),
            allow_compat: false,
        };
        let probe = Probe::run(trial, &question);
        self.with_probed(&probe, || Functions::load(question.dialect()))
    }

    fn with_probed(
        mut self,
        probe: &Probe,
        functions: impl FnOnce() -> Result<Arc<Functions>, crowfly_machine::gpu_storage::StorageError>,
    ) -> Self {
        self.obstacles.clone_from(&probe.obstacles);
        if !probe.mode.is_some_and(Mode::is_direct) {
            return self;
        }
        match functions().and_then(|functions| Driver::open(&functions, Compat::Refused)) {
            Ok(driver) => self.storage = Some(driver),
            Err(error) => self.obstacles.push(
                Obstacle::blocks(
                    Code::StorageDriverRefused,
                    "the storage library works in a child process and not in this one",
                )
                .seen("driver-open", error.to_string()),
            ),
        }
        self
    }

    /// With an open storage library that is known to go straight.
    #[must_use]
    pub fn with_storage(mut self, driver: Arc<Driver>) -> Self {
        self.storage = Some(driver);
        self
    }

    /// Its number, in PCI address order.
    pub const fn index(&self) -> u32 {
        self.index
    }

    /// Its place.
    pub const fn place(&self) -> Place {
        Place::Gpu(self.index)
    }

    /// The open device.
    pub const fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The storage library, where it goes straight.
    pub const fn storage(&self) -> Option<&Arc<Driver>> {
        self.storage.as_ref()
    }

    /// Why the storage library of its maker is not used, or is slower than it could be.
    pub fn storage_obstacles(&self) -> &[Obstacle] {
        &self.obstacles
    }

    /// The engine path of its maker's storage library.
    pub fn storage_path(&self) -> EnginePath {
        storage_path(self.device.runtime().dialect())
    }

    /// Who exports its memory to the fabric's NICs, and what they have to know of it.
    pub fn exporter(&self) -> (Arc<dyn Exporter + Send + Sync>, GpuFacts) {
        let owner = self.place().to_string();
        let exporter = GpuExporter::new(Arc::clone(&self.device), owner);
        (Arc::new(exporter), self.device.facts().for_registration())
    }
}

pub(crate) const fn storage_path(dialect: Dialect) -> EnginePath {
    match dialect {
        Dialect::Cuda => EnginePath::CuFile,
        Dialect::Hip => EnginePath::HipFile,
    }
}

fn no_runtime(place: &dyn fmt::Display, dialect: Dialect, error: &GpuError) -> Obstacle {
    let (code, summary) = match error {
        GpuError::Unsupported { .. } => (
            Code::NoGpuRuntime,
            format!("{dialect} is not there to use {place}"),
        ),
        GpuError::NoSuchGpu { .. } => (Code::NoGpu, format!("{dialect} does not show {place}")),
        _ => (
            Code::GpuRuntimeFailed,
            format!("{dialect} does not open {place}"),
        ),
    };
    let maker = match dialect {
        Dialect::Cuda => "NVIDIA's driver; in a container, start it with the GPU runtime",
        Dialect::Hip => "ROCm; in a container, give it /dev/kfd and /dev/dri",
    };
    Obstacle::blocks(code, summary)
        .seen(error.call().unwrap_or("the runtime"), error.to_string())
        .fixed_by(Fix::by_hand(format!("Install {maker}.")))
}

#[cfg(test)]
mod tests;
