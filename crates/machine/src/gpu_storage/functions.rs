//! The functions of cuFile and of hipFile, found at run time.

use std::ffi::{OsStr, c_char, c_int, c_uint, c_void};
use std::sync::Arc;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::abi::{BatchEvent, BatchParameters, Descriptor, Status};
use super::error::StorageError;
use crate::gpu::Dialect;

impl Dialect {
    /// The names under which the maker's storage library is installed, newest first.
    pub const fn storage_libraries(self) -> &'static [&'static str] {
        match self {
            Self::Cuda => &["libcufile.so.0"],
            Self::Hip => &["libhipfile.so.0", "libhipfile.so"],
        }
    }
}

macro_rules! functions {
    (
        required { $($name:ident($cuda:literal, $hip:literal) = $type:ty;)+ }
        optional { $($later:ident($later_cuda:literal, $later_hip:literal) = $later_type:ty;)+ }
    ) => {
        /// What crowfly calls of a storage library. The real table comes from [`Functions::load`]; a
        /// test can put another in its place. A function that the library lacks is `None`.
        #[derive(Clone)]
        #[allow(missing_docs, reason = "each is the C function of the dialect's name, with its signature")]
        pub struct Functions {
            pub dialect: Dialect,
            pub library: String,
            $(pub $name: $type,)+
            $(pub $later: Option<$later_type>,)+
        }

        impl Functions {
            fn from_library(dialect: Dialect, name: &str, library: &Library) -> Result<Self, StorageError> {
                Ok(Self {
                    dialect,
                    library: name.to_owned(),
                    $($name: {
                        let symbol = dialect.of($cuda, $hip);
                        // SAFETY: the type is the signature that the maker documents for the symbol.
                        let function = unsafe { library.get::<$type>(symbol.as_bytes()) };
                        *function.map_err(|error| missing(name, symbol, &error))?
                    },)+
                    $($later: match dialect.of($later_cuda, $later_hip) {
                        "" => None,
                        // SAFETY: as above.
                        symbol => unsafe { library.get::<$later_type>(symbol.as_bytes()) }.ok().map(|f| *f),
                    },)+
                })
            }

            $(
                #[allow(dead_code, reason = "each optional function has one")]
                pub(super) fn $later(&self) -> Result<$later_type, StorageError> {
                    self.$later.ok_or_else(|| StorageError::Unsupported {
                        library: self.library.clone(),
                        symbol: match self.dialect.of($later_cuda, $later_hip) {
                            "" => self.dialect.of($later_hip, $later_cuda),
                            symbol => symbol,
                        }.to_owned(),
                        why: "the installed version does not have it".into(),
                    })
                }
            )+
        }
    };
}

functions! {
    required {
        driver_open("cuFileDriverOpen", "hipFileDriverOpen") = unsafe extern "C" fn() -> Status;
        handle_register("cuFileHandleRegister", "hipFileHandleRegister") = unsafe extern "C" fn(*mut *mut c_void, *mut Descriptor) -> Status;
        handle_deregister("cuFileHandleDeregister", "hipFileHandleDeregister") = unsafe extern "C" fn(*mut c_void);
        buffer_register("cuFileBufRegister", "hipFileBufRegister") = unsafe extern "C" fn(*const c_void, usize, c_int) -> Status;
        buffer_deregister("cuFileBufDeregister", "hipFileBufDeregister") = unsafe extern "C" fn(*const c_void) -> Status;
        read("cuFileRead", "hipFileRead") = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, i64, i64) -> isize;
        write("cuFileWrite", "hipFileWrite") = unsafe extern "C" fn(*mut c_void, *const c_void, usize, i64, i64) -> isize;
    }
    optional {
        driver_close_v2("cuFileDriverClose_v2", "") = unsafe extern "C" fn() -> Status;
        driver_close("cuFileDriverClose", "hipFileDriverClose") = unsafe extern "C" fn() -> Status;
        version("cuFileGetVersion", "") = unsafe extern "C" fn(*mut c_int) -> Status;
        properties("cuFileDriverGetProperties", "hipFileDriverGetProperties") = unsafe extern "C" fn(*mut c_void) -> Status;
        peer_flags("cuFileDriverGetP2PFlags", "") = unsafe extern "C" fn(c_int, *mut c_uint) -> Status;
        set_bool("cuFileSetParameterBool", "hipFileSetParameterBool") = unsafe extern "C" fn(c_int, bool) -> Status;
        set_string("cuFileSetParameterString", "") = unsafe extern "C" fn(c_int, *const c_char) -> Status;
        set_statistics_level("cuFileSetStatsLevel", "") = unsafe extern "C" fn(c_int) -> Status;
        statistics_start("cuFileStatsStart", "") = unsafe extern "C" fn() -> Status;
        statistics("cuFileGetStatsL3", "hipFileGetStatsL3") = unsafe extern "C" fn(*mut c_void) -> Status;
        read_vector("cuFileReadv", "") = unsafe extern "C" fn(*mut c_void, *const c_void, usize, i64, c_uint) -> isize;
        read_async("cuFileReadAsync", "hipFileReadAsync") = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut usize, *mut i64, *mut i64, *mut isize, *mut c_void) -> Status;
        write_async("cuFileWriteAsync", "hipFileWriteAsync") = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut usize, *mut i64, *mut i64, *mut isize, *mut c_void) -> Status;
        batch_set_up("cuFileBatchIOSetUp", "hipFileBatchIOSetUp") = unsafe extern "C" fn(*mut *mut c_void, c_uint) -> Status;
        batch_submit("cuFileBatchIOSubmit", "hipFileBatchIOSubmit") = unsafe extern "C" fn(*mut c_void, c_uint, *mut BatchParameters, c_uint) -> Status;
        batch_status("cuFileBatchIOGetStatus", "hipFileBatchIOGetStatus") = unsafe extern "C" fn(*mut c_void, c_uint, *mut c_uint, *mut BatchEvent, *mut libc::timespec) -> Status;
        batch_destroy("cuFileBatchIODestroy", "hipFileBatchIODestroy") = unsafe extern "C" fn(*mut c_void);
    }
}

impl Functions {
    /// The functions of the installed library, which is never closed: it starts threads and
    /// registers exit handlers. Loading it opens no driver.
    ///
    /// # Errors
    /// [`StorageError::Unsupported`] names the library, or the first required function that it lacks.
    pub fn load(dialect: Dialect) -> Result<Arc<Self>, StorageError> {
        let mut refused = None;
        for name in dialect.storage_libraries() {
            match Self::load_from(dialect, OsStr::new(name)) {
                Err(error @ StorageError::Unsupported { .. }) => {
                    refused.get_or_insert(error);
                }
                other => return other,
            }
        }
        Err(refused.unwrap_or_else(|| StorageError::Unsupported {
            library: String::new(),
            symbol: String::new(),
            why: "no library is known".into(),
        }))
    }

    /// The functions of the library in a file, for instance one that a program brings along.
    ///
    /// # Errors
    /// As [`Functions::load`].
    pub fn load_from(dialect: Dialect, file: &OsStr) -> Result<Arc<Self>, StorageError> {
        let name = file.to_string_lossy();
        // SAFETY: vendors' storage libraries may be loaded into any process; their initialisers
        // open no device.
        let library = unsafe { Library::open(Some(file), RTLD_NOW | RTLD_LOCAL) }
            .map_err(|error| missing(&name, &name, &error))?;
        let functions = Self::from_library(dialect, &name, &library);
        std::mem::forget(library);
        functions.map(Arc::new)
    }
}

impl Functions {
    /// The library's version: (1, 17); `None` where it does not say.
    pub fn library_version(&self) -> Option<(u32, u32)> {
        let mut version = 0;
        // SAFETY: it writes one integer, and needs no open driver.
        let status = unsafe { self.version?(&raw mut version) };
        // major·1000 + minor·10, as CUDA counts.
        let version = u32::try_from(version).ok().filter(|_| status.code == 0)?;
        Some((version / 1000, version % 1000 / 10))
    }
}

fn missing(library: &str, symbol: &str, error: &libloading::Error) -> StorageError {
    let why = std::error::Error::source(error).map_or(error.to_string(), ToString::to_string);
    StorageError::Unsupported {
        library: library.to_owned(),
        symbol: symbol.to_owned(),
        why,
    }
}
