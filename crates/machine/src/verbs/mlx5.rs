//! What libmlx5 has beside the verbs: registering a GPU's memory for the data-direct path of NICs that
//! have one, a PCIe function of its own past the CPU (ConnectX-8 and later).
//!
//! The library comes with rdma-core 54 or newer in the version that is needed. That it is missing says
//! nothing about the NIC: whether it has the path is then not known.

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::sync::{Arc, OnceLock};

use super::abi::{Context, Device, Mr, Pd};
use super::error::VerbsError;
use super::functions::{open, symbol};

/// The library, by the name that its ABI fixes.
const LIBRARY: &str = "libmlx5.so.1";
/// `MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT`
pub(super) const ACCESS_DATA_DIRECT: c_int = 1;
/// What a path below `/sys` has room for: `PATH_MAX`.
const ROOM: usize = 4096;

/// What crowfly calls of libmlx5.
#[derive(Clone, Copy)]
#[allow(
    missing_docs,
    reason = "each is the C function of that name, with its signature"
)]
pub struct Mlx5 {
    /// `mlx5dv_is_supported`
    pub is_supported: unsafe extern "C" fn(*mut Device) -> bool,
    /// `mlx5dv_get_data_direct_sysfs_path`
    pub data_direct_path: unsafe extern "C" fn(*mut Context, *mut c_char, usize) -> c_int,
    /// `mlx5dv_reg_dmabuf_mr`
    pub reg_dmabuf_mr:
        unsafe extern "C" fn(*mut Pd, u64, usize, u64, c_int, c_int, c_int) -> *mut Mr,
}

impl Mlx5 {
    /// The functions of the installed library, which is opened once and never closed: libibverbs has it
    /// open as well, as its driver.
    ///
    /// # Errors
    /// [`VerbsError::Unsupported`] names the library, or the first function that it lacks.
    pub fn load() -> Result<Arc<Self>, VerbsError> {
        static LOADED: OnceLock<Result<Arc<Mlx5>, (&'static str, String)>> = OnceLock::new();
        let loaded = LOADED.get_or_init(|| find().map(Arc::new));
        match loaded {
            Ok(functions) => Ok(Arc::clone(functions)),
            Err((symbol, why)) => Err(VerbsError::Unsupported {
                library: LIBRARY,
                symbol,
                why: why.clone(),
            }),
        }
    }
}

fn find() -> Result<Mlx5, (&'static str, String)> {
    let library = open(LIBRARY)?;
    macro_rules! find {
        ($symbol:literal @ $version:literal) => {{
            let (name, version) = (concat!($symbol, "\0"), concat!($version, "\0"));
            // SAFETY: the field's type is the signature that rdma-core documents for this symbol in this
            // version.
            let found = unsafe { symbol(library, name, version) };
            found.map_err(|why| (concat!($symbol, "@", $version), why))?
        }};
    }
    Ok(Mlx5 {
        is_supported: find!("mlx5dv_is_supported" @ "MLX5_1.8"),
        data_direct_path: find!("mlx5dv_get_data_direct_sysfs_path" @ "MLX5_1.25"),
        reg_dmabuf_mr: find!("mlx5dv_reg_dmabuf_mr" @ "MLX5_1.25"),
    })
}

/// A NIC's path for data past the CPU.
#[derive(Clone)]
pub struct DataDirect {
    pub(super) functions: Arc<Mlx5>,
    /// Where it is, below `/sys`.
    pub at: String,
}

impl fmt::Debug for DataDirect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DataDirect({})", self.at)
    }
}

/// Why a NIC is not known to have such a path.
#[derive(Debug, thiserror::Error)]
pub enum NoDataDirect {
    /// It has none.
    #[error("it has none ({0})")]
    Absent(&'static str),
    /// Nobody can tell.
    #[error("it cannot be told whether it has one: {0}")]
    Unknown(VerbsError),
}

impl DataDirect {
    /// Asks whether an open device has one.
    ///
    /// # Safety
    /// The context is that of an open device.
    pub(super) unsafe fn of(
        name: &str,
        context: *mut Context,
        functions: Result<Arc<Mlx5>, VerbsError>,
    ) -> Result<Self, NoDataDirect> {
        let functions = functions.map_err(NoDataDirect::Unknown)?;
        // SAFETY: the context is open, and so its device is known to the library.
        if !unsafe { (functions.is_supported)((*context).device) } {
            return Err(NoDataDirect::Absent("it is none of mlx5's"));
        }
        let mut path = [0; ROOM];
        // SAFETY: the context is one of mlx5's; the room is as long as is said.
        let answer = unsafe { (functions.data_direct_path)(context, path.as_mut_ptr(), ROOM) };
        match answer {
            0 => {
                // The library ends what it writes with a zero byte; should it not, this does.
                path[ROOM - 1] = 0;
                // SAFETY: there is a zero byte in the room.
                let at = unsafe { CStr::from_ptr(path.as_ptr()) };
                let at = at.to_string_lossy().into_owned();
                Ok(Self { functions, at })
            }
            libc::ENODEV => Err(NoDataDirect::Absent("the driver names no such function")),
            errno => Err(NoDataDirect::Unknown(VerbsError::Call {
                device: name.to_owned(),
                call: "mlx5dv_get_data_direct_sysfs_path".into(),
                source: std::io::Error::from_raw_os_error(errno),
            })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_installed_library_has_all_functions_or_the_first_that_it_lacks_is_named_with_its_version()
     {
        match Mlx5::load() {
            Ok(_) => {}
            Err(error @ VerbsError::Unsupported { symbol, .. }) => {
                let known = [LIBRARY, "mlx5dv_get_data_direct_sysfs_path@MLX5_1.25"];
                assert!(known.contains(&symbol), "{error}");
                assert!(error.to_string().contains(LIBRARY), "{error}");
            }
            Err(error) => panic!("{error}"),
        }
    }
}
