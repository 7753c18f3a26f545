//! The functions of NCCL, found at run time.

use std::ffi::{CStr, OsStr, c_int, c_void};
use std::sync::{Arc, OnceLock};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::abi::{Config, Handle, SUCCESS, Text, UniqueId};
use super::error::NcclError;
use crate::gpu::Dialect;

impl Dialect {
    /// The names under which the maker's library of collectives is installed.
    pub const fn collective_libraries(self) -> &'static [&'static str] {
        match self {
            Self::Cuda => &["libnccl.so.2"],
            Self::Hip => &["librccl.so.1"],
        }
    }
}

macro_rules! functions {
    ($($name:ident = $symbol:literal: unsafe extern "C" fn($($type:ty),*) -> $answer:ty;)+) => {
        /// What crowfly calls of NCCL. The real table comes from [`Functions::load`]; a test can put
        /// another in its place.
        #[derive(Clone)]
        #[allow(missing_docs, reason = "each is the C function of that name, with its signature")]
        pub struct Functions {
            /// The library's file name, or its path.
            pub library: String,
            $(pub(super) $name: unsafe extern "C" fn($($type),*) -> $answer,)+
        }

        impl Functions {
            fn from_library(name: &str, library: &Library) -> Result<Self, NcclError> {
                Ok(Self {
                    library: name.to_owned(),
                    $($name: {
                        // SAFETY: the type is the signature that nccl.h has for the symbol.
                        let found = unsafe { library.get($symbol.as_bytes()) };
                        *found.map_err(|error| missing(name, $symbol, &error))?
                    },)+
                })
            }
        }
    };
}

functions! {
    version = "ncclGetVersion": unsafe extern "C" fn(*mut c_int) -> c_int;
    unique_id = "ncclGetUniqueId": unsafe extern "C" fn(*mut UniqueId) -> c_int;
    init_rank = "ncclCommInitRankConfig": unsafe extern "C" fn(*mut Handle, c_int, UniqueId, c_int, *mut Config) -> c_int;
    destroy = "ncclCommDestroy": unsafe extern "C" fn(Handle) -> c_int;
    abort = "ncclCommAbort": unsafe extern "C" fn(Handle) -> c_int;
    async_error = "ncclCommGetAsyncError": unsafe extern "C" fn(Handle, *mut c_int) -> c_int;
    error_text = "ncclGetErrorString": unsafe extern "C" fn(c_int) -> Text;
    last_error = "ncclGetLastError": unsafe extern "C" fn(Handle) -> Text;
    all_reduce = "ncclAllReduce": unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, *mut c_void) -> c_int;
    reduce_scatter = "ncclReduceScatter": unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, *mut c_void) -> c_int;
    all_gather = "ncclAllGather": unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, Handle, *mut c_void) -> c_int;
    broadcast = "ncclBroadcast": unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, *mut c_void) -> c_int;
    reduce = "ncclReduce": unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, c_int, Handle, *mut c_void) -> c_int;
    send = "ncclSend": unsafe extern "C" fn(*const c_void, usize, c_int, c_int, Handle, *mut c_void) -> c_int;
    recv = "ncclRecv": unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, Handle, *mut c_void) -> c_int;
    group_start = "ncclGroupStart": unsafe extern "C" fn() -> c_int;
    group_end = "ncclGroupEnd": unsafe extern "C" fn() -> c_int;
}

impl Functions {
    /// The functions of the installed library, which is opened once and never closed: it starts
    /// threads.
    ///
    /// # Errors
    /// [`NcclError::Unsupported`] names the library, or the first function that it lacks: versions
    /// before 2.14 have no communicators that do not block.
    pub fn load(dialect: Dialect) -> Result<Arc<Self>, NcclError> {
        static LOADED: [OnceLock<Result<Arc<Functions>, NcclError>>; 2] =
            [OnceLock::new(), OnceLock::new()];
        let [cuda, hip] = &LOADED;
        let names = dialect.collective_libraries();
        dialect
            .of(cuda, hip)
            .get_or_init(|| first_of(names).map(Arc::new))
            .clone()
    }

    /// The functions of a library at a path, as a wheel brings it (`nvidia/nccl/lib/libnccl.so.2`).
    ///
    /// # Errors
    /// As for [`Functions::load`].
    ///
    /// # Safety
    /// It must be NCCL or RCCL.
    pub unsafe fn at(path: &std::path::Path) -> Result<Arc<Self>, NcclError> {
        open(path.as_os_str()).map(Arc::new)
    }

    /// The library's version, as it writes it: 22005 for 2.20.5.
    ///
    /// # Errors
    /// What it answers.
    pub fn version(&self) -> Result<u32, NcclError> {
        let mut version = 0;
        // SAFETY: it writes one integer.
        let code = unsafe { (self.version)(&raw mut version) };
        self.did("ncclGetVersion", code)?;
        Ok(u32::try_from(version).unwrap_or_default())
    }

    /// What the ranks of a new communicator find each other by. One rank asks for it and gives it to
    /// the others; its process must stay.
    ///
    /// # Errors
    /// What the library answers: it may have no network.
    pub fn new_id(&self) -> Result<UniqueId, NcclError> {
        let mut id = UniqueId::ZERO;
        // SAFETY: it writes one identity.
        let code = unsafe { (self.unique_id)(&raw mut id) };
        self.did("ncclGetUniqueId", code)?;
        Ok(id)
    }

    pub(super) fn did(&self, call: &'static str, code: c_int) -> Result<(), NcclError> {
        match code {
            SUCCESS => Ok(()),
            code => Err(self.failure(call, code, std::ptr::null_mut())),
        }
    }

    /// A failure in the library's words, with what it wrote down last of a communicator.
    pub(super) fn failure(&self, call: &'static str, code: c_int, of: Handle) -> NcclError {
        // SAFETY: the library answers with a static text for any number.
        let meaning = text(unsafe { (self.error_text)(code) });
        // SAFETY: it takes no notice of the communicator, and answers with a text of its own.
        let last = text(unsafe { (self.last_error)(of) });
        let meaning = match (meaning.is_empty(), last.is_empty()) {
            (true, true) => "no explanation".to_owned(),
            (false, true) => meaning,
            (true, false) => last,
            (false, false) => format!("{meaning} ({})", last.trim()),
        };
        NcclError::Call {
            library: self.library.clone(),
            call,
            code,
            meaning,
        }
    }
}

fn text(text: Text) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the library gives C strings that stay until its next call of this thread.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}

/// The first library that is there.
fn first_of(names: &[&str]) -> Result<Functions, NcclError> {
    let mut refused = None;
    for name in names {
        match open(OsStr::new(name)) {
            Err(error @ NcclError::Unsupported { .. }) if is_absent(&error) => {
                refused.get_or_insert(error);
            }
            other => return other,
        }
    }
    Err(refused.unwrap_or(NcclError::Unsupported {
        library: String::new(),
        symbol: String::new(),
        why: "no library is known".to_owned(),
    }))
}

/// Whether the library itself could not be opened.
fn is_absent(error: &NcclError) -> bool {
    matches!(error, NcclError::Unsupported { library, symbol, .. } if library == symbol)
}

fn open(name: &OsStr) -> Result<Functions, NcclError> {
    let shown = name.to_string_lossy();
    // SAFETY: the library may be loaded into any process; its initialisers touch no device.
    match unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) } {
        Ok(library) => {
            let functions = Functions::from_library(&shown, &library);
            std::mem::forget(library);
            functions
        }
        Err(error) => Err(missing(&shown, &shown, &error)),
    }
}

fn missing(library: &str, symbol: &str, error: &libloading::Error) -> NcclError {
    let why = std::error::Error::source(error).map_or(error.to_string(), ToString::to_string);
    NcclError::Unsupported {
        library: library.to_owned(),
        symbol: symbol.to_owned(),
        why,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_without_the_functions_is_refused_with_the_first_that_is_missing() {
        let error = open(OsStr::new("libc.so.6")).err().expect("it is no NCCL");
        assert_eq!(error.code(), "nccl-unsupported");
        let text = error.to_string();
        assert!(
            text.starts_with("libc.so.6 has no `ncclGetVersion`: "),
            "{text}"
        );
    }

    #[test]
    fn a_library_that_is_not_there_is_named() {
        let error = first_of(&["libnccl-of-nobody.so.2"]).err();
        let text = error.expect("nobody has it").to_string();
        assert!(
            text.starts_with("libnccl-of-nobody.so.2 cannot be loaded: "),
            "{text}"
        );
    }

    #[test]
    fn the_installed_library_has_every_function() {
        match Functions::load(Dialect::Cuda) {
            Ok(functions) => assert!(functions.version().expect("it says") >= 21_400),
            Err(error) if is_absent(&error) => crowfly_waive::waived!("{error}"),
            Err(error) => panic!("{error}"),
        }
    }
}
