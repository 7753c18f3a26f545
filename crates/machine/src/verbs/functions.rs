//! The functions of libibverbs, found at run time by name and version.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::{Arc, OnceLock};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::abi::{
    CompChannel, Context, Cq, Device, DeviceAttr, Gid, GidEntry, Mr, Pd, PortAttr, Qp, QpAttr,
    QpInitAttr,
};
use super::error::VerbsError;
use super::mlx5::Mlx5;

/// The library, by the name that its ABI fixes.
pub(super) const LIBRARY: &str = "libibverbs.so.1";

macro_rules! functions {
    (
        required { $($name:ident : $symbol:literal @ $version:literal = $type:ty,)+ }
        optional { $($later:ident : $later_symbol:literal @ $later_version:literal = $later_type:ty,)+ }
    ) => {
        /// What crowfly calls of libibverbs. The real table comes from [`Functions::load`]; a test
        /// can put another in its place. Posting and polling are not here: as the C header's inline
        /// functions do, they go through the operations of the open context.
        #[derive(Clone)]
        #[allow(missing_docs, reason = "each is the C function of that name, with its signature")]
        pub struct Functions {
            $(pub $name: $type,)+
            $(pub $later: Option<$later_type>,)+
            /// Finds what mlx5's own library has beside the verbs, when that is asked for first.
            pub mlx5: fn() -> Result<Arc<Mlx5>, VerbsError>,
        }

        impl Functions {
            fn from_library(library: Handle) -> Result<Self, VerbsError> {
                Ok(Self {
                    $($name: {
                        // SAFETY: the type is the signature that rdma-core documents for this
                        // symbol in this version.
                        let found = unsafe { symbol::<$type>(library, concat!($symbol, "\0"), concat!($version, "\0")) };
                        found.map_err(|why| VerbsError::Unsupported {
                            library: LIBRARY,
                            symbol: concat!($symbol, "@", $version),
                            why,
                        })?
                    },)+
                    $($later: {
                        // SAFETY: as above.
                        unsafe { symbol::<$later_type>(library, concat!($later_symbol, "\0"), concat!($later_version, "\0")) }.ok()
                    },)+
                    mlx5: Mlx5::load,
                })
            }

            $(
                pub(super) fn $later(&self) -> Result<$later_type, VerbsError> {
                    self.$later.ok_or_else(|| VerbsError::Unsupported {
                        library: LIBRARY,
                        symbol: concat!($later_symbol, "@", $later_version),
                        why: "the installed version is older than the function".into(),
                    })
                }
            )+
        }

        /// The symbols and versions a full library has, required ones first.
        #[cfg(test)]
        const SYMBOLS: &[(&str, &str)] = &[$(($symbol, $version),)+ $(($later_symbol, $later_version),)+];
    };
}

functions! {
    required {
        get_device_list: "ibv_get_device_list" @ "IBVERBS_1.1" = unsafe extern "C" fn(*mut c_int) -> *mut *mut Device,
        free_device_list: "ibv_free_device_list" @ "IBVERBS_1.1" = unsafe extern "C" fn(*mut *mut Device),
        open_device: "ibv_open_device" @ "IBVERBS_1.1" = unsafe extern "C" fn(*mut Device) -> *mut Context,
        close_device: "ibv_close_device" @ "IBVERBS_1.1" = unsafe extern "C" fn(*mut Context) -> c_int,
        query_device: "ibv_query_device" @ "IBVERBS_1.1" = unsafe extern "C" fn(*mut Context, *mut DeviceAttr) -> c_int,
        query_port: "ibv_query_port" @ "IBVERBS_1.1" = unsafe extern "C" fn(*mut Context, u8, *mut PortAttr) -> c_int,
        query_gid: "ibv_query_gid" @ "IBVERBS_1.1" = unsafe extern "C" fn(*mut Context, u8, c_int, *mut Gid) -> c_int,
        alloc_pd: "ibv_alloc_pd" @ "IBVERBS_1.1" = unsafe extern "C" fn(*mut Context) -> *mut Pd,
        dealloc_pd: "ibv_dealloc_pd" @ "IBVERBS_1.1" = unsafe extern "C" fn(*mut Pd) -> c_int,
        reg_mr: "ibv_reg_mr" @ "IBVERBS_1.1" = unsafe extern "C" fn(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr,
        dereg_mr: "ibv_dereg_mr" @ "IBVERBS_1.1" = unsafe extern "C" fn(*mut Mr) -> c_int,
        create_comp_channel: "ibv_create_comp_channel" @ "IBVERBS_1.0" = unsafe extern "C" fn(*mut Context) -> *mut CompChannel,
        destroy_comp_channel: "ibv_destroy_comp_channel" @ "IBVERBS_1.0" = unsafe extern "C" fn(*mut CompChannel) -> c_int,
        create_cq: "ibv_create_cq" @ "IBVERBS_1.1" = unsafe extern "C" fn(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq,
        destroy_cq: "ibv_destroy_cq" @ "IBVERBS_1.1" = unsafe extern "C" fn(*mut Cq) -> c_int,
        get_cq_event: "ibv_get_cq_event" @ "IBVERBS_1.1" = unsafe extern "C" fn(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int,
        ack_cq_events: "ibv_ack_cq_events" @ "IBVERBS_1.1" = unsafe extern "C" fn(*mut Cq, c_uint),
        create_qp: "ibv_create_qp" @ "IBVERBS_1.1" = unsafe extern "C" fn(*mut Pd, *mut QpInitAttr) -> *mut Qp,
        modify_qp: "ibv_modify_qp" @ "IBVERBS_1.1" = unsafe extern "C" fn(*mut Qp, *mut QpAttr, c_int) -> c_int,
        destroy_qp: "ibv_destroy_qp" @ "IBVERBS_1.1" = unsafe extern "C" fn(*mut Qp) -> c_int,
    }
    optional {
        reg_mr_iova2: "ibv_reg_mr_iova2" @ "IBVERBS_1.8" = unsafe extern "C" fn(*mut Pd, *mut c_void, usize, u64, c_uint) -> *mut Mr,
        query_gid_ex: "_ibv_query_gid_ex" @ "IBVERBS_1.11" = unsafe extern "C" fn(*mut Context, u32, u32, *mut GidEntry, u32, usize) -> c_int,
        reg_dmabuf_mr: "ibv_reg_dmabuf_mr" @ "IBVERBS_1.12" = unsafe extern "C" fn(*mut Pd, u64, usize, u64, c_int, c_int) -> *mut Mr,
    }
}

/// An open library that is never closed.
#[derive(Clone, Copy)]
pub(super) struct Handle(*mut c_void);

/// Looks a symbol up in exactly one version: libibverbs keeps old versions whose structures
/// differ, and a plain look-up may find those.
///
/// # Safety
/// `T` must be a function pointer of the symbol's type. Both names end in a zero byte.
pub(super) unsafe fn symbol<T: Copy>(
    library: Handle,
    name: &str,
    version: &str,
) -> Result<T, String> {
    const {
        assert!(size_of::<T>() == size_of::<*mut c_void>());
    }
    // SAFETY: both names are C strings, and the handle is that of an open library.
    let found = unsafe {
        libc::dlvsym(
            library.0,
            name.as_ptr().cast::<c_char>(),
            version.as_ptr().cast::<c_char>(),
        )
    };
    if found.is_null() {
        // SAFETY: dlerror returns null or a C string that is valid until the next dl call.
        let said = unsafe { libc::dlerror() };
        if said.is_null() {
            return Err("not found".into());
        }
        // SAFETY: not null, see above.
        let said = unsafe { CStr::from_ptr(said) };
        return Err(said.to_string_lossy().into_owned());
    }
    // SAFETY: the sizes are equal (asserted above) and the caller vouches for the type.
    Ok(unsafe { std::mem::transmute_copy::<*mut c_void, T>(&found) })
}

impl Functions {
    /// The functions of the installed library, which is opened once and never closed: it starts
    /// threads of its drivers and registers exit handlers.
    ///
    /// # Errors
    /// [`VerbsError::Unsupported`] names the library, or the first function that it lacks.
    pub fn load() -> Result<Arc<Self>, VerbsError> {
        static LOADED: OnceLock<Result<Arc<Functions>, (&'static str, String)>> = OnceLock::new();
        let loaded = LOADED.get_or_init(|| {
            open(LIBRARY).and_then(|library| {
                let functions = Self::from_library(library).map_err(|error| match error {
                    VerbsError::Unsupported { symbol, why, .. } => (symbol, why),
                    other => (LIBRARY, other.to_string()),
                })?;
                Ok(Arc::new(functions))
            })
        });
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

pub(super) fn open(name: &'static str) -> Result<Handle, (&'static str, String)> {
    // SAFETY: libibverbs may be loaded into any process; its initialiser only reads settings.
    let library = unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) };
    let library = library.map_err(|error| {
        let why = std::error::Error::source(&error).map_or(error.to_string(), ToString::to_string);
        (name, why)
    })?;
    Ok(Handle(library.into_raw()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_named() {
        let (symbol, why) = open("libnot-there.so.1").err().expect("not there");
        assert_eq!(symbol, "libnot-there.so.1");
        assert!(why.contains("libnot-there.so.1"), "{why}");
    }

    #[test]
    fn a_library_without_the_functions_is_refused_with_the_first_that_is_missing() {
        let library = open("libc.so.6").expect("every process has it");
        let error = Functions::from_library(library)
            .err()
            .expect("not libibverbs");
        assert_eq!(error.code(), "unsupported");
        let text = error.to_string();
        assert!(text.contains("ibv_get_device_list@IBVERBS_1.1"), "{text}");
    }

    #[test]
    fn a_symbol_is_found_only_in_the_version_asked_for() {
        let library = open("libc.so.6").expect("every process has it");
        // SAFETY: the function is only looked up, never called.
        let of = |version| unsafe { symbol::<*mut c_void>(library, "memcpy\0", version) };
        assert!(of("NOT_A_VERSION\0").is_err());
    }

    #[test]
    fn the_installed_library_has_every_function_in_its_version() {
        let library = match open(LIBRARY) {
            Ok(library) => library,
            Err((_, why)) => crowfly_waive::waived!("{why}"),
        };
        for (name, version) in SYMBOLS {
            let (name, version) = (format!("{name}\0"), format!("{version}\0"));
            // SAFETY: the function is only looked up, never called.
            let found = unsafe { symbol::<*mut c_void>(library, &name, &version) };
            assert!(found.is_ok(), "{name}@{version}");
        }
        assert!(Functions::load().is_ok());
    }
}
