//! RDMA devices and their ports.

use std::ffi::{CStr, c_int};
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use super::abi;
use super::completion::CompletionQueue;
use super::error::VerbsError;
use super::functions::{Functions, LIBRARY};
use super::gid::{GidKind, PortGid};
use super::memory::ProtectionDomain;

/// The most entries of one port's address table that are looked at.
const MAX_GIDS: u32 = 256;

/// The RDMA devices of this machine, through libibverbs or a stand-in for it.
#[derive(Clone)]
pub struct Verbs {
    functions: Arc<Functions>,
}

impl fmt::Debug for Verbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Verbs")
    }
}

impl Verbs {
    /// Through the installed library.
    ///
    /// # Errors
    /// [`VerbsError::Unsupported`].
    pub fn load() -> Result<Self, VerbsError> {
        Functions::load().map(|functions| Self { functions })
    }

    /// Through another table of functions.
    ///
    /// # Safety
    /// The functions must do what libibverbs documents for their names: return objects that stay
    /// valid until they are destroyed, and touch registered memory only while it is registered.
    pub const unsafe fn with(functions: Arc<Functions>) -> Self {
        Self { functions }
    }

    /// The names of the devices, in the library's order.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn devices(&self) -> Result<Vec<String>, VerbsError> {
        let list = List::get(&self.functions)?;
        Ok(list.iter().map(|(name, _)| name).collect())
    }

    /// Opens a device.
    ///
    /// # Errors
    /// [`VerbsError::NoSuchDevice`], or the kernel's refusal.
    pub fn open(&self, name: &str) -> Result<Arc<Context>, VerbsError> {
        let list = List::get(&self.functions)?;
        let Some((_, device)) = list.iter().find(|(known, _)| known == name) else {
            return Err(VerbsError::NoSuchDevice {
                name: name.to_owned(),
                known: list.iter().map(|(known, _)| known).collect(),
            });
        };
        // SAFETY: the device is in the list, which is freed only after this call.
        let raw = unsafe { (self.functions.open_device)(device) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbsError::Call {
            device: name.to_owned(),
            call: "ibv_open_device".into(),
            source: io::Error::last_os_error(),
        })?;
        // SAFETY: as above.
        let iwarp = unsafe { (*device).transport_type == abi::TRANSPORT_IWARP };
        Ok(Arc::new(Context {
            raw,
            iwarp,
            name: name.to_owned(),
            functions: Arc::clone(&self.functions),
        }))
    }
}

/// The device list, freed when it goes out of scope.
struct List<'f> {
    functions: &'f Functions,
    raw: NonNull<*mut abi::Device>,
    count: usize,
}

impl<'f> List<'f> {
    fn get(functions: &'f Functions) -> Result<Self, VerbsError> {
        let mut count = 0;
        // SAFETY: `count` is writable.
        let raw = unsafe { (functions.get_device_list)(&raw mut count) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbsError::Call {
            device: "RDMA devices".into(),
            call: "ibv_get_device_list".into(),
            source: io::Error::last_os_error(),
        })?;
        Ok(Self {
            functions,
            raw,
            count: usize::try_from(count).unwrap_or(0),
        })
    }

    fn iter(&self) -> impl Iterator<Item = (String, *mut abi::Device)> {
        // SAFETY: the library promises an array of `count` pointers (and a null after them).
        let devices = unsafe { std::slice::from_raw_parts(self.raw.as_ptr(), self.count) };
        devices
            .iter()
            .filter(|device| !device.is_null())
            .map(|device| {
                // SAFETY: the pointer is that of a device in a list that is not yet freed, and its
                // name is a C string within its array.
                let name = unsafe { CStr::from_ptr((**device).name.as_ptr()) };
                (name.to_string_lossy().into_owned(), *device)
            })
    }
}

impl Drop for List<'_> {
    fn drop(&mut self) {
        // SAFETY: the list came from the library and is not used any more; open devices stay open.
        unsafe { (self.functions.free_device_list)(self.raw.as_ptr()) };
    }
}

/// An open device. Everything made of it holds it, so it closes last.
pub struct Context {
    raw: NonNull<abi::Context>,
    iwarp: bool,
    name: String,
    functions: Arc<Functions>,
}

// SAFETY: libibverbs documents its verbs as thread-safe; a context has no thread affinity.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({})", self.name)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: everything made of the context holds an `Arc` of it, so nothing is left.
        let _ = unsafe { (self.functions.close_device)(self.raw.as_ptr()) };
    }
}

/// What a device can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests that one queue may hold.
    pub max_requests: usize,
    /// Completions that one completion queue may hold.
    pub max_completions: usize,
    /// Pieces of memory in one request.
    pub max_pieces: usize,
    /// Reads that a queue pair may answer at a time.
    pub max_reads_answered: u8,
    /// Reads that a queue pair may have outstanding.
    pub max_reads_asked: u8,
    /// Bytes of one region.
    pub max_region: u64,
    /// How many ports there are; they are numbered from 1.
    pub ports: u8,
}

/// What joins two ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// InfiniBand: ports have local identifiers (LIDs) given by a subnet manager.
    InfiniBand,
    /// Ethernet: RoCE or iWARP.
    Ethernet,
    /// Something else, by its number.
    Other(u8),
}

/// A port as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its number, from 1.
    pub number: u8,
    /// Whether it can carry traffic.
    pub active: bool,
    /// What the cable carries.
    pub link_layer: LinkLayer,
    /// Its local identifier; 0 on Ethernet.
    pub lid: u16,
    /// The largest packet it carries now, as `enum ibv_mtu` counts: 1 is 256 bytes, 5 is 4096.
    pub mtu: Mtu,
    /// The largest message.
    pub max_message: u32,
    /// Entries of its address table.
    pub gids: u32,
}

/// The largest payload of a packet, as `enum ibv_mtu` counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mtu(u8);

impl Mtu {
    /// Reads the number of `enum ibv_mtu`, 1 to 5.
    pub const fn from_code(code: u8) -> Option<Self> {
        if code >= 1 && code <= 5 {
            Some(Self(code))
        } else {
            None
        }
    }

    /// The number of `enum ibv_mtu`.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// In bytes.
    pub const fn bytes(self) -> u32 {
        128 << self.0
    }
}

impl Context {
    /// The device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the device speaks iWARP, whose queue pairs only librdmacm can connect.
    pub const fn is_iwarp(&self) -> bool {
        self.iwarp
    }

    /// Whether the kernel plays the device in software (soft-RoCE, soft-iWARP): it is there
    /// without a device of its own behind it. Its bytes pass the CPU and the network stack.
    pub fn is_software(&self) -> bool {
        let at = std::path::Path::new("/sys/class/infiniband").join(&self.name);
        at.exists() && !at.join("device").exists()
    }

    /// The rate that a port negotiated, in bits per second, as the kernel writes it.
    pub fn rate(&self, port: u8) -> Option<f64> {
        let at = format!("/sys/class/infiniband/{}/ports/{port}/rate", self.name);
        rate_of(&std::fs::read_to_string(at).ok()?)
    }

    pub(super) const fn raw(&self) -> *mut abi::Context {
        self.raw.as_ptr()
    }

    pub(super) fn functions(&self) -> &Functions {
        &self.functions
    }

    pub(super) fn failed(&self, call: impl Into<String>, source: io::Error) -> VerbsError {
        VerbsError::Call {
            device: self.name.clone(),
            call: call.into(),
            source,
        }
    }

    pub(super) fn missing(&self, operation: &'static str) -> VerbsError {
        VerbsError::Unsupported {
            library: LIBRARY,
            symbol: operation,
            why: format!("the driver of {} does not offer it", self.name),
        }
    }

    /// The object a call made; libibverbs returns null and sets `errno` when it could not.
    pub(super) fn created<T>(
        &self,
        raw: *mut T,
        call: impl FnOnce() -> String,
    ) -> Result<NonNull<T>, VerbsError> {
        // Read before anything else can change it.
        let errno = io::Error::last_os_error();
        NonNull::new(raw).ok_or_else(|| self.failed(call(), errno))
    }

    /// Whether a call returned 0; libibverbs returns an error number, or -1 and sets `errno`.
    pub(super) fn checked(
        &self,
        rc: c_int,
        call: impl FnOnce() -> String,
    ) -> Result<(), VerbsError> {
        let errno = io::Error::last_os_error();
        match rc {
            0 => Ok(()),
            1.. => Err(self.failed(call(), io::Error::from_raw_os_error(rc))),
            _ => Err(self.failed(call(), errno)),
        }
    }

    /// What the device can do.
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn limits(&self) -> Result<Limits, VerbsError> {
        // SAFETY: an all-zero `DeviceAttr` is a valid value of plain integers.
        let mut attr: abi::DeviceAttr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open and `attr` is writable.
        let rc = unsafe { (self.functions.query_device)(self.raw(), &raw mut attr) };
        self.checked(rc, || "ibv_query_device".into())?;
        let size = |value: c_int| usize::try_from(value).unwrap_or(0);
        let small = |value: c_int| u8::try_from(value.max(0)).unwrap_or(u8::MAX);
        Ok(Limits {
            max_requests: size(attr.max_qp_wr),
            max_completions: size(attr.max_cqe),
            max_pieces: size(attr.max_sge),
            max_reads_answered: small(attr.max_qp_rd_atom),
            max_reads_asked: small(attr.max_qp_init_rd_atom),
            max_region: attr.max_mr_size,
            ports: attr.phys_port_cnt,
        })
    }

    /// A port as it is now.
    ///
    /// # Errors
    /// When there is no such port.
    pub fn port(&self, number: u8) -> Result<Port, VerbsError> {
        // SAFETY: an all-zero `PortAttr` is a valid value of plain integers.
        let mut attr: abi::PortAttr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open and `attr` is writable; the exported function fills a
        // structure that this one begins with.
        let rc = unsafe { (self.functions.query_port)(self.raw(), number, &raw mut attr) };
        self.checked(rc, || format!("ibv_query_port {number}"))?;
        let mtu = u8::try_from(attr.active_mtu).ok().and_then(Mtu::from_code);
        Ok(Port {
            number,
            active: attr.state == abi::PORT_ACTIVE,
            link_layer: match attr.link_layer {
                // Drivers older than the field leave it unspecified; all of them are InfiniBand.
                0 | abi::LINK_LAYER_INFINIBAND => LinkLayer::InfiniBand,
                abi::LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
                other => LinkLayer::Other(other),
            },
            lid: attr.lid,
            mtu: mtu.unwrap_or(Mtu(1)),
            max_message: attr.max_msg_sz,
            gids: u32::try_from(attr.gid_tbl_len).unwrap_or(0).min(MAX_GIDS),
        })
    }

    /// The addresses in use of a port, in the order of its table.
    ///
    /// # Errors
    /// The driver's refusal. Without the library's newer query, kinds and interfaces are read from
    /// sysfs.
    pub fn addresses(&self, port: &Port) -> Result<Vec<PortGid>, VerbsError> {
        let mut found = Vec::new();
        for index in 0..port.gids {
            if let Some(gid) = self.address(port, index)? {
                found.push(gid);
            }
        }
        Ok(found)
    }

    fn address(&self, port: &Port, index: u32) -> Result<Option<PortGid>, VerbsError> {
        let mut entry = abi::GidEntry::default();
        if let Ok(query) = self.functions.query_gid_ex() {
            // SAFETY: the context is open, and the entry is writable with the size that is passed.
            let rc = unsafe {
                query(
                    self.raw(),
                    u32::from(port.number),
                    index,
                    &raw mut entry,
                    0,
                    size_of::<abi::GidEntry>(),
                )
            };
            match rc {
                0 => return Ok(PortGid::from_entry(&entry, interface(entry.ndev_ifindex))),
                // An unused entry.
                libc::ENODATA => return Ok(None),
                libc::EOPNOTSUPP => {}
                rc => self.checked(rc, || format!("ibv_query_gid_ex {} {index}", port.number))?,
            }
        }
        let index_c = c_int::try_from(index).unwrap_or(c_int::MAX);
        // SAFETY: the context is open and the address is writable.
        let rc = unsafe {
            (self.functions.query_gid)(self.raw(), port.number, index_c, &raw mut entry.gid)
        };
        self.checked(rc, || format!("ibv_query_gid {} {index}", port.number))?;
        let attribute = |what: &str| {
            let (name, number) = (&self.name, port.number);
            let base = format!("/sys/class/infiniband/{name}/ports/{number}/gid_attrs");
            std::fs::read_to_string(format!("{base}/{what}/{index}"))
                .ok()
                .map(|text| text.trim().to_owned())
        };
        let kind = match attribute("types").as_deref() {
            Some("RoCE v2") => GidKind::RoceV2,
            _ if port.link_layer == LinkLayer::Ethernet => GidKind::RoceV1,
            _ => GidKind::InfiniBand,
        };
        Ok(PortGid::new(index, entry.gid.raw, kind, attribute("ndevs")))
    }

    /// Makes a protection domain: regions and queue pairs work together within one.
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn protection_domain(self: &Arc<Self>) -> Result<Arc<ProtectionDomain>, VerbsError> {
        ProtectionDomain::new(self)
    }

    /// Makes a completion queue; with `events`, a thread can sleep until something completes.
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn completion_queue(
        self: &Arc<Self>,
        capacity: usize,
        events: bool,
    ) -> Result<Arc<CompletionQueue>, VerbsError> {
        CompletionQueue::new(self, capacity, events)
    }
}

/// `100 Gb/sec (4X EDR)`
fn rate_of(text: &str) -> Option<f64> {
    let (number, unit) = text.split_once(' ')?;
    let rate: f64 = number.parse().ok()?;
    (unit.starts_with("Gb/sec") && rate > 0.0).then_some(rate * 1e9)
}

/// The name of a network interface.
fn interface(index: u32) -> Option<String> {
    let mut name = [0u8; libc::IF_NAMESIZE];
    // SAFETY: the buffer has the size that the function requires.
    let found = unsafe { libc::if_indextoname(index, name.as_mut_ptr().cast()) };
    if index == 0 || found.is_null() {
        return None;
    }
    let name = CStr::from_bytes_until_nul(&name).ok()?;
    Some(name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_sizes_are_those_of_the_enumeration() {
        assert_eq!(Mtu::from_code(5).map(Mtu::bytes), Some(4096));
        assert_eq!(Mtu::from_code(1).map(Mtu::bytes), Some(256));
        assert_eq!(Mtu::from_code(0), None);
        assert_eq!(Mtu::from_code(6), None);
    }

    #[test]
    fn a_ports_rate_is_read_as_the_kernel_writes_it() {
        assert_eq!(rate_of("100 Gb/sec (4X EDR)\n"), Some(100e9));
        assert_eq!(rate_of("2.5 Gb/sec (1X SDR)\n"), Some(2.5e9));
        assert_eq!(rate_of("unknown\n"), None);
        assert_eq!(rate_of("0 Gb/sec (unknown)\n"), None);
    }

    #[test]
    fn interface_zero_has_no_name() {
        assert_eq!(interface(0), None);
        assert_eq!(interface(1).as_deref(), Some("lo"));
    }
}
