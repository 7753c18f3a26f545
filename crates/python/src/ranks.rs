//! Ranks that do collectives together, over `crowfly_mover::collective`: what `crowfly.distributed` makes a
//! backend of PyTorch of.
//!
//! Buffers come as address and length. Whoever calls keeps their memory, and lets nobody else use it, until the
//! call returns; that is what `crowfly.distributed` does with the tensors it is given.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crowfly_mover::collective::{
    CallOptions, CollectiveError, CollectiveReceipt, Courier, Element, Group, GroupSettings,
    Reduction, SharedBuffer,
};
use crowfly_mover::fabric::rendezvous::{Directory, Presence, RendezvousError};
use crowfly_mover::fabric::{Fabric, Settings, SharedKey};
use pyo3::prelude::*;

use crate::fault::Fault;

/// Address and length of memory that a call reads or writes.
type Memory = (usize, usize);

/// A Python object with `put(name, entry)` and `get(name)`, in which ranks find each other.
struct Store(Py<PyAny>);

impl Store {
    fn failed(error: &PyErr) -> RendezvousError {
        RendezvousError::Directory {
            directory: "the store of torch.distributed".to_owned(),
            source: Arc::new(std::io::Error::other(error.to_string())),
        }
    }
}

impl Directory for Store {
    fn put(&self, name: &str, entry: &str) -> Result<(), RendezvousError> {
        Python::attach(|py| self.0.call_method1(py, "put", (name, entry)).map(drop))
            .map_err(|error| Self::failed(&error))
    }

    fn hold(&self, name: &str, entry: &str) -> Result<Presence, RendezvousError> {
        // The store ends with the job, and the names are the job's own.
        self.put(name, entry).map(|()| Presence::new(|| {}))
    }

    fn get(&self, name: &str) -> Result<Option<String>, RendezvousError> {
        Python::attach(|py| self.0.call_method1(py, "get", (name,))?.extract(py))
            .map_err(|error| Self::failed(&error))
    }
}

/// The ranks of a job, as one of them.
#[pyclass(frozen, module = "crowfly._crowfly")]
pub struct Ranks {
    group: Mutex<Option<Group>>,
    courier: Courier,
    /// This rank's number.
    #[pyo3(get)]
    rank: usize,
    /// How many there are.
    #[pyo3(get)]
    size: usize,
    /// The number that each had in the group that was formed first.
    #[pyo3(get)]
    origin: Vec<usize>,
}

/// Memory of a group that all ranks of a host have mapped.
#[pyclass(frozen, module = "crowfly._crowfly")]
pub struct GroupMemory {
    buffer: Mutex<SharedBuffer>,
    /// The address of its first byte.
    #[pyo3(get)]
    address: usize,
    /// How many bytes there are.
    #[pyo3(get)]
    bytes: usize,
    /// Whether other ranks have mapped it.
    #[pyo3(get)]
    shared: bool,
}

impl GroupMemory {
    fn of(mut buffer: SharedBuffer) -> Self {
        Self {
            address: buffer.as_ptr() as usize,
            bytes: buffer.len(),
            shared: buffer.is_shared(),
            buffer: Mutex::new(buffer),
        }
    }
}

/// What a failure of a collective is in Python: an exception of `crowfly._collective`, which knows the ranks that
/// are lost.
fn raise(error: CollectiveError) -> PyErr {
    let lost: Vec<usize> = match &error {
        CollectiveError::RanksLost(lost) => lost.iter().map(|lost| lost.rank).collect(),
        _ => Vec::new(),
    };
    Python::attach(|py| {
        let made = || {
            let errors = py.import("crowfly._collective")?;
            let made = errors.getattr("failure")?;
            let made = made.call1((error.to_string(), error.code(), lost))?;
            Ok(PyErr::from_value(made))
        };
        made().unwrap_or_else(|error: PyErr| error)
    })
}

fn parsed<T: std::str::FromStr>(text: &str) -> PyResult<T>
where
    T::Err: std::fmt::Display,
{
    let wrong = |error: T::Err| Fault::usage(error.to_string()).into();
    text.parse().map_err(wrong)
}

fn time(seconds: f64) -> PyResult<Duration> {
    let wrong = |_| Fault::usage(format!("{seconds} is no number of seconds")).into();
    Duration::try_from_secs_f64(seconds).map_err(wrong)
}

/// Refuses memory of which one call would write what it reads.
fn apart(one: Memory, other: Memory) -> PyResult<()> {
    let (first, second) = if one.0 <= other.0 {
        (one, other)
    } else {
        (other, one)
    };
    if second.1 == 0 || first.0.saturating_add(first.1) <= second.0 {
        return Ok(());
    }
    Err(Fault::usage("the input and the output of the call share memory").into())
}

/// # Safety
/// The memory is there, and nobody writes it, for as long as the slice is used.
unsafe fn read<'a>((address, len): Memory) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: promised by the caller.
    unsafe { std::slice::from_raw_parts(address as *const u8, len) }
}

/// # Safety
/// The memory is there, and nobody else reads or writes it, for as long as the slice is used.
unsafe fn written<'a>((address, len): Memory) -> &'a mut [u8] {
    if len == 0 {
        return &mut [];
    }
    // SAFETY: promised by the caller.
    unsafe { std::slice::from_raw_parts_mut(address as *mut u8, len) }
}

impl Ranks {
    fn of(group: Group) -> Self {
        Self {
            rank: group.rank(),
            size: group.size(),
            origin: group.origin().to_vec(),
            courier: group.courier(),
            group: Mutex::new(Some(group)),
        }
    }

    /// Makes a call without Python's lock; answers its receipt as JSON.
    fn call(
        &self,
        py: Python<'_>,
        seconds: f64,
        call: impl FnOnce(&mut Group, CallOptions) -> Result<CollectiveReceipt, CollectiveError> + Send,
    ) -> PyResult<String> {
        let options = CallOptions::within(time(seconds)?);
        let done = py.detach(|| {
            let mut group = self.group.lock().unwrap_or_else(PoisonError::into_inner);
            group.as_mut().map(|group| call(group, options))
        });
        let receipt = done.ok_or_else(closed)?.map_err(raise)?;
        json(&receipt)
    }
}

fn json(receipt: &impl serde::Serialize) -> PyResult<String> {
    let json = serde_json::to_string(receipt);
    json.map_err(|error| Fault::usage(error.to_string()).into())
}

fn closed() -> PyErr {
    Fault::usage("the group was closed").into()
}

#[pymethods]
impl Ranks {
    /// Meets the other ranks of a job.
    #[new]
    #[pyo3(signature = (store, job, rank, size, *, key, address, shm, timeout))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn new(
        py: Python<'_>,
        store: Py<PyAny>,
        job: &str,
        rank: usize,
        size: usize,
        key: &str,
        address: &str,
        shm: bool,
        timeout: f64,
    ) -> PyResult<Self> {
        let key: SharedKey = parsed(key)?;
        let address: IpAddr = parsed(address)?;
        let settings = Settings {
            listen: (address, 0).into(),
            shm,
            ..Settings::new(key)
        };
        let forming = GroupSettings {
            time: time(timeout)?,
            ..GroupSettings::default()
        };
        let store = Store(store);
        let formed = py.detach(|| {
            let fabric = Arc::new(Fabric::new(settings)?);
            Group::form(fabric, &store, job, rank, size, forming)
        });
        formed.map(Self::of).map_err(raise)
    }

    /// Reduces everyone's numbers; all have the result in `data` afterwards.
    fn all_reduce(
        &self,
        py: Python<'_>,
        data: Memory,
        element: &str,
        reduction: &str,
        timeout: f64,
    ) -> PyResult<String> {
        let (element, reduction): (Element, Reduction) = (parsed(element)?, parsed(reduction)?);
        // SAFETY: the caller lends the memory for the length of the call, as the module says.
        let data = unsafe { written(data) };
        self.call(py, timeout, |group, options| {
            group.all_reduce(data, element, reduction, options)
        })
    }

    /// Makes memory of the group, zeroed; all ranks call it.
    fn memory(&self, py: Python<'_>, bytes: usize, timeout: f64) -> PyResult<GroupMemory> {
        let options = CallOptions::within(time(timeout)?);
        let made = py.detach(|| {
            let mut group = self.group.lock().unwrap_or_else(PoisonError::into_inner);
            group.as_mut().map(|group| group.buffer(bytes, options))
        });
        let made = made.ok_or_else(closed)?.map_err(raise)?;
        Ok(GroupMemory::of(made))
    }

    /// Reduces everyone's numbers in a range of the group's memory, where they lie.
    #[expect(
        clippy::too_many_arguments,
        reason = "a range and what is done with it"
    )]
    fn all_reduce_in(
        &self,
        py: Python<'_>,
        memory: &GroupMemory,
        start: usize,
        bytes: usize,
        element: &str,
        reduction: &str,
        timeout: f64,
    ) -> PyResult<String> {
        let (element, reduction): (Element, Reduction) = (parsed(element)?, parsed(reduction)?);
        let range = start..start.saturating_add(bytes);
        self.call(py, timeout, |group, options| {
            let mut buffer = memory.buffer.lock().unwrap_or_else(PoisonError::into_inner);
            group.all_reduce_in(&mut buffer, range, element, reduction, options)
        })
    }

    /// Sends a rank bytes; it and this one alone take part.
    fn send(
        &self,
        py: Python<'_>,
        data: Memory,
        to: usize,
        tag: u64,
        timeout: f64,
    ) -> PyResult<String> {
        let options = CallOptions::within(time(timeout)?);
        // SAFETY: as in `all_reduce`.
        let data = unsafe { read(data) };
        let sent = py.detach(|| self.courier.send(to, tag, data, options));
        json(&sent.map_err(raise)?)
    }

    /// Receives what a rank sends, or any where none is given.
    fn receive(
        &self,
        py: Python<'_>,
        data: Memory,
        from_: Option<usize>,
        tag: u64,
        timeout: f64,
    ) -> PyResult<String> {
        let options = CallOptions::within(time(timeout)?);
        // SAFETY: as in `all_reduce`.
        let data = unsafe { written(data) };
        let came = py.detach(|| self.courier.receive(from_, tag, data, options));
        json(&came.map_err(raise)?)
    }

    /// Reduces everyone's `input`; `output` is this rank's part.
    fn reduce_scatter(
        &self,
        py: Python<'_>,
        input: Memory,
        output: Memory,
        element: &str,
        reduction: &str,
        timeout: f64,
    ) -> PyResult<String> {
        let (element, reduction): (Element, Reduction) = (parsed(element)?, parsed(reduction)?);
        apart(input, output)?;
        // SAFETY: as in `all_reduce`; the two are apart.
        let (input, output) = unsafe { (read(input), written(output)) };
        self.call(py, timeout, |group, options| {
            group.reduce_scatter(input, output, element, reduction, options)
        })
    }

    /// Gathers everyone's `input` in the order of the ranks.
    fn all_gather(
        &self,
        py: Python<'_>,
        input: Memory,
        output: Memory,
        timeout: f64,
    ) -> PyResult<String> {
        apart(input, output)?;
        // SAFETY: as in `reduce_scatter`.
        let (input, output) = unsafe { (read(input), written(output)) };
        self.call(py, timeout, |group, options| {
            group.all_gather(input, output, Element::U8, options)
        })
    }

    /// Gives everyone what `root` has.
    fn broadcast(
        &self,
        py: Python<'_>,
        data: Memory,
        root: usize,
        timeout: f64,
    ) -> PyResult<String> {
        // SAFETY: as in `all_reduce`.
        let data = unsafe { written(data) };
        self.call(py, timeout, |group, options| {
            group.broadcast(data, root, Element::U8, options)
        })
    }

    /// Sends each rank so many bytes of `input` and receives so many from each.
    fn all_to_all(
        &self,
        py: Python<'_>,
        input: Memory,
        to: Vec<usize>,
        output: Memory,
        from_: Vec<usize>,
        timeout: f64,
    ) -> PyResult<String> {
        apart(input, output)?;
        // SAFETY: as in `reduce_scatter`.
        let (input, output) = unsafe { (read(input), written(output)) };
        self.call(py, timeout, |group, options| {
            group.all_to_all_v((input, &to), (output, &from_), Element::U8, options)
        })
    }

    /// Returns when all ranks have called it.
    fn barrier(&self, py: Python<'_>, timeout: f64) -> PyResult<String> {
        self.call(py, timeout, Group::barrier)
    }

    /// The ranks that are left after a failure; all of them call it.
    fn shrink(&self, py: Python<'_>, timeout: f64) -> PyResult<Self> {
        let options = CallOptions::within(time(timeout)?);
        let done = py.detach(|| {
            let mut group = self.group.lock().unwrap_or_else(PoisonError::into_inner);
            group.as_mut().map(|group| group.shrink(options))
        });
        done.ok_or_else(closed)?.map(Self::of).map_err(raise)
    }

    /// Takes leave of the other ranks.
    fn close(&self, py: Python<'_>) {
        py.detach(|| {
            let group = self
                .group
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            drop(group);
        });
    }
}
