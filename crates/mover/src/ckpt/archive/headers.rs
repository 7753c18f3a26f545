//! Whether the files of a step say of themselves what its manifest says of them.

use super::{Archive, ArchiveError, Format};
use crate::checkpoint::Checkpoint;

impl Archive {
    /// Reads the headers of the files of a step, which plain safetensors readers go by, and finds the
    /// tensors that these place elsewhere than the manifest does. None in other formats, which have
    /// no manifest.
    ///
    /// # Errors
    /// When a header cannot be read or is refused.
    pub fn headers_that_differ(&self) -> Result<Vec<ArchiveError>, ArchiveError> {
        let mut faults = Vec::new();
        if !matches!(self.format, Format::Step { .. }) {
            return Ok(faults);
        }
        for (number, file) in self.files.iter().enumerate() {
            let checkpoint = Checkpoint::open(&file.path)?;
            for (name, tensor) in &self.tensors {
                for part in tensor.parts.iter().filter(|part| part.file == number) {
                    let found = checkpoint.get(&part.key).is_some_and(|(_, found)| {
                        (found.dtype, found.shape) == (tensor.dtype, &*part.extent.shape)
                            && found.range == part.range
                    });
                    if !found {
                        faults.push(ArchiveError::HeaderDiffers {
                            tensor: name.as_str().into(),
                            file: file.path.clone(),
                        });
                    }
                }
            }
        }
        Ok(faults)
    }
}
