//! Reading the memory of another process of the same user (`process_vm_readv`). Nothing here writes
//! into another process: whoever's memory is to change reads the other's.

use std::io;

use rustix::process::Pid;

use super::Span;

fn read(process: Pid, address: u64, to: *mut u8, len: usize) -> io::Result<usize> {
    let address = usize::try_from(address).map_err(io::Error::other)?;
    let local = libc::iovec {
        iov_base: to.cast(),
        iov_len: len,
    };
    let remote = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: len,
    };
    // SAFETY: the callers pass a part of their own memory of this length that lives during the
    // call; the kernel checks the other process's addresses and only reads there.
    let got =
        unsafe { libc::process_vm_readv(process.as_raw_nonzero().get(), &local, 1, &remote, 1, 0) };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}

/// Reads a few bytes at an address of another process.
pub(crate) fn peek<const N: usize>(process: Pid, address: u64) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let got = read(process, address, bytes.as_mut_ptr(), N)?;
    if got < N {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
    }
    Ok(bytes)
}

impl Span {
    /// Fills this part from an address of another process on; returns how many bytes came.
    pub(crate) fn fill_from(&self, process: Pid, address: u64) -> io::Result<usize> {
        if !self.backing.writable {
            return Err(io::Error::from(io::ErrorKind::PermissionDenied));
        }
        self.fill(|to, len| read(process, address, to, len))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::Buffer;
    use super::*;

    #[test]
    fn bytes_come_from_an_address_of_a_process_and_a_wrong_address_is_an_error() {
        let here = rustix::process::getpid();
        let source = [7u8; 100];
        let address = source.as_ptr() as u64;
        let got: [u8; 8] = peek(here, address).expect("this process reads itself");
        assert_eq!(got, [7; 8]);
        let backing = Buffer::private(64).expect("memory").into_backing();
        let span = Arc::clone(&backing).span(8..24).expect("inside");
        assert_eq!(span.fill_from(here, address).expect("read"), 16);
        let mut out = [9; 64];
        let got = backing.span(0..64).expect("inside").get(&mut out);
        assert_eq!(got.expect("host memory"), 64);
        assert_eq!(
            (&out[..8], &out[8..24], &out[24..]),
            (&[0; 8][..], &[7; 16][..], &[0; 40][..])
        );
        assert!(span.fill_from(here, 1).is_err(), "nothing is mapped there");
    }
}
