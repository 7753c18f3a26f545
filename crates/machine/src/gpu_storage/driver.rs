//! The library's driver, open; files and memory registered with it; bytes moved by it.

use std::ffi::{CString, c_int, c_void};
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use super::abi::{self, Descriptor, Handle, Status};
use super::error::StorageError;
use super::functions::Functions;
use super::statistics::Counters;
use crate::gpu::{DeviceMemory, Dialect, InFlight, Stream};
use crate::verbs::Pinned;

mod standard_input;

use standard_input::StandardInput;

/// Whether the library may read files by POSIX calls through host memory where it cannot go
/// straight. It then says "success" all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compat {
    /// As its configuration says, which allows it by default.
    AsConfigured,
    /// Not, as far as the version lets itself be told. That it went straight has still to be seen
    /// in [`Counters`]: versions that were told so have read into host memory nevertheless.
    Refused,
}

/// The most that is asked for in one request: some versions refuse larger ones.
pub const MAX_REQUEST: usize = 16 << 20;

/// Where cuFile's configuration lies by default.
const CONFIGURATION: &str = "/etc/cufile.json";

/// The driver, open until the last user lets go.
pub struct Driver {
    functions: Arc<Functions>,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Driver({})", self.functions.library)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let f = &self.functions;
        // Before its second version, closing did not count how often it was opened.
        if let Some(close) = f.driver_close_v2.or(f.driver_close) {
            // SAFETY: opened once by `open`; files and registrations hold an `Arc` of this.
            let _ = unsafe { close() };
        }
    }
}

impl Driver {
    /// Opens the driver in this process. It can hang: try it in a child first
    /// ([`Probe`](super::probe::Probe)).
    ///
    /// # Errors
    /// The library's refusal.
    pub fn open(functions: &Arc<Functions>, compat: Compat) -> Result<Arc<Self>, StorageError> {
        Self::open_and_tell(functions, compat).0
    }

    /// The same, and whether it closed descriptor 0, which was put back: failing, it does as well.
    pub(super) fn open_and_tell(
        functions: &Arc<Functions>,
        compat: Compat,
    ) -> (Result<Arc<Self>, StorageError>, bool) {
        functions.ask_for_statistics();
        if compat == Compat::Refused
            && let Some(set) = functions.set_bool
        {
            // SAFETY: it takes a number and a truth value, before the driver is opened.
            let _ = unsafe { set(abi::PARAMETER_ALLOW_COMPAT, false) };
        }
        keep_log_out_of_working_folder(functions);
        let input = StandardInput::hold();
        // SAFETY: it may be called from any thread.
        let status = unsafe { (functions.driver_open)() };
        let closed_input = input.restore();
        let call = functions
            .dialect
            .of("cuFileDriverOpen", "hipFileDriverOpen");
        if let Err(error) = succeeded(call, status) {
            return (Err(error), closed_input);
        }
        if let Some(start) = functions.statistics_start {
            // SAFETY: the driver is open.
            let _ = unsafe { start() };
        }
        let driver = Arc::new(Self {
            functions: Arc::clone(functions),
        });
        (Ok(driver), closed_input)
    }

    /// The functions.
    pub const fn functions(&self) -> &Arc<Functions> {
        &self.functions
    }

    /// Whose library it is.
    pub fn dialect(&self) -> Dialect {
        self.functions.dialect
    }

    /// What was counted since it was opened, by this whole process.
    ///
    /// # Errors
    /// When the version does not count.
    pub fn counters(&self) -> Result<Counters, StorageError> {
        self.functions.counters()
    }

    /// The library's version: (1, 17); `None` where it does not say.
    pub fn version(&self) -> Option<(u32, u32)> {
        self.functions.library_version()
    }

    /// Registers an open file.
    ///
    /// # Errors
    /// The library's refusal.
    pub fn register(self: &Arc<Self>, file: Arc<File>) -> Result<Arc<StorageFile>, StorageError> {
        let mut descriptor = Descriptor {
            kind: abi::HANDLE_FD,
            handle: Handle {
                pointer: std::ptr::null_mut(),
            },
            operations: std::ptr::null(),
        };
        descriptor.handle.fd = file.as_raw_fd();
        let mut raw = std::ptr::null_mut();
        // SAFETY: it writes one handle and reads the descriptor, whose file is held.
        let status = unsafe { (self.functions.handle_register)(&raw mut raw, &raw mut descriptor) };
        let call = self
            .dialect()
            .of("cuFileHandleRegister", "hipFileHandleRegister");
        succeeded(call, status)?;
        Ok(Arc::new(StorageFile {
            raw,
            driver: Arc::clone(self),
            _file: file,
        }))
    }

    /// Pins a GPU's memory for the driver, so that it is reached without a buffer in between.
    ///
    /// # Errors
    /// The library's refusal, for instance when no more of the memory can be pinned.
    pub fn register_memory(
        self: &Arc<Self>,
        memory: Arc<DeviceMemory>,
    ) -> Result<MemoryRegistration, StorageError> {
        let (start, len) = (memory.address() as *const c_void, memory.len());
        let register = self.functions.buffer_register;
        let status = memory.gpu().current(|| {
            // SAFETY: the memory is held until it is deregistered.
            unsafe { register(start, len, 0) }
        })?;
        succeeded(
            self.dialect().of("cuFileBufRegister", "hipFileBufRegister"),
            status,
        )?;
        Ok(MemoryRegistration {
            memory,
            driver: Arc::clone(self),
        })
    }
}

/// cuFile writes its log into the working folder unless it is configured.
fn keep_log_out_of_working_folder(functions: &Functions) {
    let configured =
        std::env::var_os("CUFILE_ENV_PATH_JSON").is_some() || Path::new(CONFIGURATION).exists();
    let folder = CString::new(std::env::temp_dir().to_string_lossy().into_owned());
    if let (false, Some(set), Ok(folder)) = (configured, functions.set_string, folder) {
        // SAFETY: it reads a C string, before the driver is opened.
        let _ = unsafe { set(abi::PARAMETER_LOG_FOLDER, folder.as_ptr()) };
    }
}

pub(super) const fn succeeded(call: &'static str, status: Status) -> Result<(), StorageError> {
    if status.code == Status::SUCCESS.code {
        return Ok(());
    }
    Err(StorageError::Refused {
        call,
        code: status.code,
        gpu_code: status.gpu_code,
    })
}

/// What `cuFileRead` and its like returned: bytes, −1 with an error number, or the negative of a
/// code of the library.
fn transferred(call: &'static str, returned: isize) -> Result<usize, StorageError> {
    match usize::try_from(returned) {
        Ok(bytes) => Ok(bytes),
        Err(_) if returned < -(abi::BASE as isize) => Err(StorageError::Refused {
            call,
            code: c_int::try_from(-returned).unwrap_or(c_int::MAX),
            gpu_code: 0,
        }),
        Err(_) => Err(StorageError::Io {
            call,
            source: match returned {
                -1 => io::Error::last_os_error(),
                // hipFile, and cuFile on streams, hand the error number itself on.
                other => io::Error::from_raw_os_error(i32::try_from(-other).unwrap_or(libc::EIO)),
            },
        }),
    }
}

/// Memory that is pinned for the driver until this is dropped.
#[derive(Debug)]
pub struct MemoryRegistration {
    memory: Arc<DeviceMemory>,
    driver: Arc<Driver>,
}

impl Drop for MemoryRegistration {
    fn drop(&mut self) {
        let (start, deregister) = (
            self.memory.address() as *const c_void,
            self.driver.functions.buffer_deregister,
        );
        // SAFETY: registered by `register_memory`, and the memory is still there.
        let _ = self.memory.gpu().current(|| unsafe { deregister(start) });
    }
}

/// A file that is registered with the driver until this is dropped.
pub struct StorageFile {
    raw: *mut c_void,
    driver: Arc<Driver>,
    _file: Arc<File>,
}

// SAFETY: the libraries document their functions as thread-safe.
unsafe impl Send for StorageFile {}
// SAFETY: as above.
unsafe impl Sync for StorageFile {}

impl fmt::Debug for StorageFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StorageFile({})", self.driver.functions.library)
    }
}

impl Drop for StorageFile {
    fn drop(&mut self) {
        // SAFETY: registered by `Driver::register`; requests hold an `Arc` of this.
        unsafe { (self.driver.functions.handle_deregister)(self.raw) };
    }
}

/// Which way bytes of a queued request go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Read,
    Write,
}

impl StorageFile {
    /// The driver.
    pub const fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }

    pub(super) const fn raw(&self) -> *mut c_void {
        self.raw
    }

    /// Reads from the file into a GPU's memory, and waits for it. Fewer bytes than asked for arrive
    /// at the end of the file, and beyond [`MAX_REQUEST`].
    ///
    /// # Errors
    /// The library's or the kernel's refusal.
    pub fn read(
        &self,
        to: &Arc<DeviceMemory>,
        range: Range<usize>,
        offset: u64,
    ) -> Result<usize, StorageError> {
        let (at, len, offset) = request(to, &range, offset)?;
        let (read, base) = (self.driver.functions.read, to.address() as *mut c_void);
        let returned = to.gpu().current(|| {
            // SAFETY: the range lies in the memory, which is held; the file is registered.
            unsafe { read(self.raw, base, len, offset, at) }
        })?;
        transferred(
            self.driver.dialect().of("cuFileRead", "hipFileRead"),
            returned,
        )
    }

    /// Writes a GPU's memory to the file, and waits for it.
    ///
    /// # Errors
    /// The library's or the kernel's refusal.
    pub fn write(
        &self,
        from: &Arc<DeviceMemory>,
        range: Range<usize>,
        offset: u64,
    ) -> Result<usize, StorageError> {
        let (at, len, offset) = request(from, &range, offset)?;
        let (write, base) = (self.driver.functions.write, from.address() as *const c_void);
        let returned = from.gpu().current(|| {
            // SAFETY: as above.
            unsafe { write(self.raw, base, len, offset, at) }
        })?;
        transferred(
            self.driver.dialect().of("cuFileWrite", "hipFileWrite"),
            returned,
        )
    }

    /// Queues a read on a stream, in order with the kernels there: none of them sees the memory
    /// before the bytes have arrived, and the CPU waits for nothing.
    ///
    /// # Errors
    /// When the version has no such function, or refuses.
    pub fn queue_read(
        self: &Arc<Self>,
        stream: &Stream,
        to: &Arc<DeviceMemory>,
        range: Range<usize>,
        offset: u64,
    ) -> Result<Queued, StorageError> {
        self.queue(Way::Read, stream, to, range, offset)
    }

    /// Queues a write on a stream, after the kernels there that make the bytes.
    ///
    /// # Errors
    /// When the version has no such function, or refuses.
    pub fn queue_write(
        self: &Arc<Self>,
        stream: &Stream,
        from: &Arc<DeviceMemory>,
        range: Range<usize>,
        offset: u64,
    ) -> Result<Queued, StorageError> {
        self.queue(Way::Write, stream, from, range, offset)
    }

    fn queue(
        self: &Arc<Self>,
        way: Way,
        stream: &Stream,
        memory: &Arc<DeviceMemory>,
        range: Range<usize>,
        offset: u64,
    ) -> Result<Queued, StorageError> {
        let f = &self.driver.functions;
        let (call, function) = match way {
            Way::Read => (
                f.dialect.of("cuFileReadAsync", "hipFileReadAsync"),
                f.read_async()?,
            ),
            Way::Write => (
                f.dialect.of("cuFileWriteAsync", "hipFileWriteAsync"),
                f.write_async()?,
            ),
        };
        let (at, len, offset) = request(memory, &range, offset)?;
        let terms = Arc::new(Terms(Mutex::new(Numbers {
            len,
            offset,
            at,
            done: 0,
        })));
        // The library reads and writes the numbers when the stream comes to the request.
        let held = Arc::new((Arc::clone(&terms), Arc::clone(memory), Arc::clone(self)));
        let base = memory.address() as *mut c_void;
        let flight = stream.queue_other(held, || {
            let numbers = terms.pointer();
            // SAFETY: the numbers, the memory and the file are held until the stream is past the
            // request; nobody looks at the numbers before.
            let status = unsafe {
                function(
                    self.raw,
                    base,
                    &raw mut (*numbers).len,
                    &raw mut (*numbers).offset,
                    &raw mut (*numbers).at,
                    &raw mut (*numbers).done,
                    stream.raw(),
                )
            };
            succeeded(call, status)
        })?;
        Ok(Queued {
            call,
            flight,
            terms,
        })
    }
}

/// What a queued request is told by address.
struct Numbers {
    len: usize,
    offset: i64,
    at: i64,
    done: isize,
}

struct Terms(Mutex<Numbers>);

impl Terms {
    /// Where the numbers lie for as long as this value does.
    fn pointer(&self) -> *mut Numbers {
        let mut numbers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        &raw mut *numbers
    }
}

/// A request that was queued on a stream. Dropping it waits for it.
#[must_use = "dropping it waits for the GPU"]
pub struct Queued {
    call: &'static str,
    flight: InFlight,
    terms: Arc<Terms>,
}

impl fmt::Debug for Queued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Queued({}, {:?})", self.call, self.flight)
    }
}

impl Queued {
    /// The request as work of its stream.
    pub const fn flight(&self) -> &InFlight {
        &self.flight
    }

    /// Waits for it; how many bytes it moved.
    ///
    /// # Errors
    /// Why it failed.
    pub fn wait(self) -> Result<usize, StorageError> {
        self.flight.wait()?;
        let numbers = self.terms.0.lock().unwrap_or_else(PoisonError::into_inner);
        transferred(self.call, numbers.done)
    }
}

/// The numbers of a request, which has to lie in its memory.
pub(super) fn request(
    memory: &Arc<DeviceMemory>,
    range: &Range<usize>,
    offset: u64,
) -> Result<(i64, usize, i64), StorageError> {
    memory.contains(range)?;
    let len = range.len().min(MAX_REQUEST);
    let invalid = |_| StorageError::Io {
        call: "offset",
        source: io::Error::from(io::ErrorKind::InvalidInput),
    };
    let at = i64::try_from(range.start).map_err(invalid)?;
    Ok((at, len, i64::try_from(offset).map_err(invalid)?))
}
