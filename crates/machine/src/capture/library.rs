//! Vendors' libraries: whether each loads, from where, and its version. Only of the live machine.
//!
//! Loading a library and asking its version starts nothing: no driver is opened and no device is
//! touched. In particular cuFile's driver is never opened here, because that can hang, and can
//! close descriptor 0. Whether the environment *works* is another question, asked by whoever uses it.

use std::ffi::{CStr, c_int, c_void};

use crowfly_route::snapshot::Observation;
use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL, Symbol};

use super::recorder::Recorder;

/// A library to try.
struct Probe {
    /// The name it is loaded by.
    library: &'static str,
    /// A function that every version has: it tells the file that was loaded.
    known: &'static str,
    version: Option<Version>,
}

/// How a library tells its version.
struct Version {
    /// Its function `int f(int *version)`.
    function: &'static str,
    /// How that number reads.
    reads: fn(c_int) -> String,
}

const PROBES: &[Probe] = &[
    Probe {
        library: "libcuda.so.1",
        known: "cuInit",
        version: Some(Version {
            function: "cuDriverGetVersion",
            reads: cuda_version,
        }),
    },
    Probe {
        library: "libnvidia-ml.so.1",
        known: "nvmlInit_v2",
        version: None,
    },
    Probe {
        library: "libcufile.so.0",
        known: "cuFileDriverOpen",
        version: Some(Version {
            function: "cuFileGetVersion",
            reads: cuda_version,
        }),
    },
    Probe {
        library: "libibverbs.so.1",
        known: "ibv_get_device_list",
        version: None,
    },
    Probe {
        library: "librdmacm.so.1",
        known: "rdma_create_id",
        version: None,
    },
    Probe {
        library: "libnccl.so.2",
        known: "ncclGetVersion",
        version: Some(Version {
            function: "ncclGetVersion",
            reads: nccl_version,
        }),
    },
    Probe {
        library: "librccl.so.1",
        known: "ncclGetVersion",
        version: Some(Version {
            function: "ncclGetVersion",
            reads: nccl_version,
        }),
    },
    Probe {
        library: "libamdhip64.so.7",
        known: "hipGetDeviceCount",
        version: None,
    },
    Probe {
        library: "libamdhip64.so.6",
        known: "hipGetDeviceCount",
        version: None,
    },
];

/// `CUDA_VERSION` of cuda.h, and cuFile's in the same form: major·1000 + minor·10.
fn cuda_version(v: c_int) -> String {
    format!("{}.{}", v / 1000, v % 1000 / 10)
}

/// `NCCL_VERSION` of nccl.h: X·1000 + Y·100 + Z up to 2.8, X·10000 + Y·100 + Z from 2.9.
fn nccl_version(v: c_int) -> String {
    let unit = if v < 10_000 { 1000 } else { 10_000 };
    format!("{}.{}.{}", v / unit, v % unit / 100, v % 100)
}

pub(super) fn look(r: &mut Recorder<'_>) {
    for probe in PROBES {
        look_for(r, probe);
    }
}

/// Records the file as `library:NAME`, absent when there is none, and what the library says of its
/// version as `library:NAME/version`, absent when it has no such function.
fn look_for(r: &mut Recorder<'_>, probe: &Probe) {
    let name = probe.library;
    let key = format!("library:{name}");
    // SAFETY: the libraries probed are vendors' runtimes, whose initialisers may run in any process.
    let library = match unsafe { Library::open(Some(name), RTLD_LAZY | RTLD_LOCAL) } {
        Ok(library) => library,
        Err(error) => return r.record(key, refused(name, &error)),
    };
    let file = file_of(&library, probe.known);
    r.record(
        key.as_str(),
        file.map_or_else(Observation::Error, Observation::text),
    );
    if let Some(Version { function, reads }) = &probe.version {
        let seen = match version(&library, function) {
            Some(Ok(number)) => Observation::text(reads(number)),
            Some(Err(code)) => Observation::Error(format!("{function} returned {code}")),
            None => Observation::Absent,
        };
        r.record(format!("{key}/version"), seen);
    }
    // Vendors' libraries start threads and register exit handlers: unmapping one is not safe.
    std::mem::forget(library);
}

/// Not there is one thing; there but not loadable, such as for want of another library, is another.
fn refused(name: &str, error: &libloading::Error) -> Observation {
    let why = std::error::Error::source(error).map_or(error.to_string(), ToString::to_string);
    let missing =
        why.starts_with(&format!("{name}: ")) || why.contains(&format!("library {name}: "));
    if missing && why.contains("No such file") {
        Observation::Absent
    } else {
        Observation::Error(why)
    }
}

/// The file that holds a function, links resolved: the file's own name carries the version.
fn file_of(library: &Library, function: &str) -> Result<String, String> {
    // SAFETY: the symbol is only used as an address.
    let symbol: Symbol<*const c_void> = unsafe { library.get(function.as_bytes()) }
        .map_err(|_| format!("it has no `{function}`"))?;
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: `info` is writable, and any address may be asked about.
    let known = unsafe { libc::dladdr(symbol.into_raw(), &raw mut info) };
    if known == 0 || info.dli_fname.is_null() {
        return Err(format!("the file that holds `{function}` is not known"));
    }
    // SAFETY: the loader's name of a loaded file is a C string that lives as long as the library.
    let name = unsafe { CStr::from_ptr(info.dli_fname) }.to_string_lossy();
    let file = std::fs::canonicalize(&*name);
    Ok(file.map_or(name.into_owned(), |path| {
        path.to_string_lossy().into_owned()
    }))
}

/// What `int function(int *)` answers; `None` where the library has no such function.
fn version(library: &Library, function: &str) -> Option<Result<c_int, c_int>> {
    // SAFETY: every version function probed has this signature in its vendor's header.
    let symbol: Symbol<unsafe extern "C" fn(*mut c_int) -> c_int> =
        unsafe { library.get(function.as_bytes()) }.ok()?;
    let mut number = 0;
    // SAFETY: it writes one `int`, and needs no initialisation of its library.
    match unsafe { symbol(&raw mut number) } {
        0 => Some(Ok(number)),
        code => Some(Err(code)),
    }
}

#[cfg(test)]
mod tests {
    use super::nccl_version;

    #[test]
    fn nccl_numbers_read_in_both_schemes() {
        assert_eq!(nccl_version(2804), "2.8.4");
        assert_eq!(nccl_version(21_212), "2.12.12");
        assert_eq!(nccl_version(22_703), "2.27.3");
    }
}
