//! Touching pages before their first use.

use std::io;

use super::{BLOCK, Target};

/// Pages that one system call touches.
const AT_ONCE: usize = 512;

impl Target {
    /// Has the kernel read one byte of every `every`-th page, and answers how many it read. In a
    /// virtual machine, the first time that a core touches a page which a device wrote, the host
    /// may have to look for it, page by page.
    ///
    /// # Errors
    /// `EFAULT` where the memory is gone; `EPERM` or `ENOSYS` where a process may not look at its
    /// own memory this way.
    pub(crate) fn touch(&self, every: usize) -> io::Result<usize> {
        let mut bytes = [0u8; AT_ONCE];
        let mut touched = 0;
        let mut pages = (0..self.len()).step_by(every.max(1) * BLOCK).peekable();
        while pages.peek().is_some() {
            let from: Vec<libc::iovec> = pages
                .by_ref()
                .take(AT_ONCE)
                .map(|at| libc::iovec {
                    iov_base: self.pointer().wrapping_add(at).cast(),
                    iov_len: 1,
                })
                .collect();
            let into = libc::iovec {
                iov_base: bytes.as_mut_ptr().cast(),
                iov_len: from.len(),
            };
            // SAFETY: the kernel writes as many bytes as there are pages, of which `bytes` has room for
            // AT_ONCE, and only reads inside this part; what it cannot read gives EFAULT.
            let read = unsafe {
                libc::process_vm_readv(
                    libc::getpid(),
                    &into,
                    1,
                    from.as_ptr(),
                    from.len() as libc::c_ulong,
                    0,
                )
            };
            match usize::try_from(read) {
                Ok(read) => touched += read,
                Err(_) => return Err(io::Error::last_os_error()),
            }
        }
        Ok(touched)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;

    use crate::memory::{BLOCK, Memory};

    #[test]
    fn every_page_is_touched_once_and_of_a_cut_file_the_answer_is_an_error_and_no_signal() {
        let memory = Memory::host(1500 * BLOCK, None).expect("memory");
        let target = memory.target(0..1500 * BLOCK);
        assert_eq!(target.touch(1).expect("ours"), 1500);
        assert_eq!(target.touch(64).expect("ours"), 24);
        assert_eq!(target.part(0, BLOCK + 1).touch(1).expect("ours"), 2);
        assert_eq!(target.part(0, 0).touch(1).expect("nothing"), 0);
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&[7; 2 * BLOCK]).expect("written");
        let mapped = target.part(0, 2 * BLOCK);
        mapped.map_file(file.as_fd(), 0).expect("mapped");
        assert_eq!(mapped.touch(1).expect("there"), 2);
        file.set_len(0).expect("cut");
        let error = mapped.touch(1).expect_err("gone");
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
    }
}
