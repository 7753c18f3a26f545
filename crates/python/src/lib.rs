//! The native half of the wheel: checkpoints, memory and receipts for Python.
//!
//! Python sees the package `crowfly` (in `python/`), which adds conversions to frameworks and typed views of
//! what comes back as JSON. Here are the parts that touch memory or the engine:
//!
//! 1. [`view`] and [`tensor`]: memory with a shape; [`dlpack`], [`buffer`]: how other libraries take it;
//! 2. [`transfer`]: waiting for bytes; [`device`]: where they go; [`on_stream`]: not waiting for them; [`open`]: lazy
//!    reading of one tensor or slice at a time;
//! 3. [`save`], [`borrow`]: writing, from others' memory; [`checkpoint`]: training's checkpoints;
//! 4. [`ranks`]: collectives among ranks, for PyTorch;
//! 5. [`fault`]: what went wrong, as an exception.

mod borrow;
mod buffer;
mod checkpoint;
mod device;
mod dlpack;
mod dtype;
mod engine;
mod fault;
mod index;
mod layout;
mod machine;
mod on_stream;
mod open;
mod ranks;
mod region;
mod save;
mod tensor;
mod transfer;
mod view;

use pyo3::prelude::*;

#[pymodule]
mod _crowfly {
    use super::*;

    #[pymodule_export]
    use super::checkpoint::{
        Archive, Restoring, Saver, Saving, latest_step, prune_steps, steps_json,
    };
    #[pymodule_export]
    use super::device::answer_trial;
    #[pymodule_export]
    use super::engine::Engine;
    #[pymodule_export]
    use super::layout::deserialize;
    #[pymodule_export]
    use super::machine::{doctor_json, route_json, topology_json};
    #[pymodule_export]
    use super::on_stream::{StreamLoad, load_on_stream};
    #[pymodule_export]
    use super::open::Opened;
    #[pymodule_export]
    use super::ranks::{GroupMemory, Ranks};
    #[pymodule_export]
    use super::region::Region;
    #[pymodule_export]
    use super::save::{serialize, start_save};
    #[pymodule_export]
    use super::transfer::Transfer;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("Tensor", tensor::class(module.py())?)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
