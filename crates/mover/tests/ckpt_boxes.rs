//! Tensors that were saved in boxes, cut along any of their dimensions, and restored in others: into
//! host memory, and into that of a GPU that exists only in this process.

#[path = "ckpt_support/state.rs"]
mod support;

use std::path::Path;
use std::sync::Arc;

use crowfly_machine::gpu::Dialect;
use crowfly_machine::gpu::fake::FakeGpus;
use crowfly_machine::gpu_storage::fake::{Behaviour, FakeStorage};
use crowfly_machine::gpu_storage::{Compat, Driver};
use crowfly_mover::Engine;
use crowfly_mover::checkpoint::dtype::Dtype;
use crowfly_mover::ckpt::{
    Archive, Extent, Restoration, RestoreOptions, Saver, SaverSettings, State, TensorPart, Want,
};
use crowfly_mover::gpu::{Gpu, To};
use crowfly_route::place::Place;
use crowfly_route::receipt::Path as Way;
use crowfly_route::units::Bytes;
use proptest::prelude::*;
use support::{alone, assert_holds, model, owned, pattern, restore, state};

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder")
}

/// The elements of a box of a row-major tensor of bytes.
fn cut(bytes: &[u8], shape: &[u64], part: &Extent) -> Vec<u8> {
    let mut out = Vec::new();
    let mut index = part.offset.clone();
    if part.is_empty() {
        return out;
    }
    loop {
        let at = index.iter().zip(shape).fold(0, |at, (i, n)| at * n + i);
        out.push(bytes[at as usize]);
        let mut dim = shape.len();
        loop {
            if dim == 0 {
                return out;
            }
            dim -= 1;
            index[dim] += 1;
            if index[dim] < part.offset[dim] + part.shape[dim] {
                break;
            }
            index[dim] = part.offset[dim];
        }
    }
}

/// All boxes of a grid that has these cuts along each dimension.
fn grid(shape: &[u64], cuts: &[Vec<u64>]) -> Vec<Extent> {
    let mut boxes = vec![Extent::default()];
    for (length, cuts) in shape.iter().zip(cuts) {
        let mut ends: Vec<u64> = cuts.iter().map(|cut| cut % (length + 1)).collect();
        ends.extend([0, *length]);
        ends.sort_unstable();
        ends.dedup();
        boxes = boxes
            .iter()
            .flat_map(|outer| {
                ends.windows(2).map(|pair| {
                    let mut inner = outer.clone();
                    inner.offset.push(pair[0]);
                    inner.shape.push(pair[1] - pair[0]);
                    inner
                })
            })
            .collect();
    }
    boxes
}

/// Saves a tensor of bytes in boxes.
fn save(root: &Path, name: &str, shape: &[u64], bytes: &[u8], boxes: &[Extent]) {
    let contents: Vec<Vec<u8>> = boxes.iter().map(|part| cut(bytes, shape, part)).collect();
    let parts = boxes.iter().zip(&contents);
    let tensors = parts.map(|(part, bytes)| TensorPart {
        global_shape: shape,
        offset: &part.offset,
        ..TensorPart::whole(name, Dtype::U8, &part.shape, bytes)
    });
    let state = State {
        tensors: tensors.collect(),
        objects: Default::default(),
    };
    let settings = SaverSettings::default();
    let mut saver = Saver::new(root, alone(), settings).expect("a budget");
    saver.save(1, &state).expect("saved");
}

fn gpu(gpus: &FakeGpus) -> Gpu {
    let runtime = gpus.runtime().expect("it starts");
    Gpu::over(0, runtime.open(FakeGpus::address(0)).expect("it is there"))
}

fn on_gpu(archive: &Archive, wants: &[Want], gpu: &Arc<Gpu>, check: bool) -> Restoration {
    let options = RestoreOptions {
        check,
        to: To::Gpu(Arc::clone(gpu)),
        ..RestoreOptions::default()
    };
    let reading = archive.restore(&Engine::default(), wants, options);
    reading.expect("starts").wait().expect("restored")
}

fn held(gpus: &FakeGpus, found: &Restoration) -> Vec<Vec<u8>> {
    let regions = found.tensors.iter().map(|tensor| &tensor.bytes);
    let bytes = regions.map(|region| {
        let (memory, range) = region.device().expect("a GPU's");
        gpus.bytes(memory)[range].to_vec()
    });
    bytes.collect()
}

/// A shape, where it is cut along each dimension, and what is wanted of each.
type Case = (Vec<u64>, Vec<Vec<u64>>, Vec<(u64, u64)>);

fn any_case() -> impl Strategy<Value = Case> {
    let shape = prop::collection::vec(1u64..9, 1..5);
    shape.prop_flat_map(|shape| {
        let dims = shape.len();
        let cuts = prop::collection::vec(prop::collection::vec(0u64..9, 0..3), dims);
        let wanted = prop::collection::vec((0u64..9, 0u64..9), dims);
        (Just(shape), cuts, wanted)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn whatever_boxes_a_tensor_was_saved_in_any_other_box_comes_back((shape, cuts, wanted) in any_case()) {
        let bytes = pattern(7, shape.iter().product::<u64>() as usize);
        let folder = folder();
        save(folder.path(), "t", &shape, &bytes, &grid(&shape, &cuts));
        let mut part = Extent::default();
        for (length, (a, b)) in shape.iter().zip(&wanted) {
            let (a, b) = (a % (length + 1), b % (length + 1));
            part.offset.push(a.min(b));
            part.shape.push(a.abs_diff(b));
        }
        let wants = [Want::whole("t"), Want::part("t", part.clone())];
        let expected = [bytes.clone(), cut(&bytes, &shape, &part)];
        let archive = Archive::open(folder.path()).expect("opens");
        for (restored, expected) in restore(&archive, &wants).iter().zip(&expected) {
            prop_assert_eq!(restored.bytes.as_slice().expect("plain"), &expected[..]);
        }
        let gpus = FakeGpus::cuda(1);
        let gpu = Arc::new(gpu(&gpus));
        for check in [true, false] {
            prop_assert_eq!(held(&gpus, &on_gpu(&archive, &wants, &gpu, check)), &expected);
        }
    }
}

#[test]
fn given_a_gpu_a_state_comes_into_its_memory_checked_there_and_staged_as_a_load_would_be() {
    let tensors = model(3);
    let folder = folder();
    let mut saver = Saver::new(folder.path(), alone(), SaverSettings::default()).expect("a budget");
    saver.save(1, &state(&tensors)).expect("saved");
    let archive = Archive::open(folder.path()).expect("opens");
    for dialect in Dialect::ALL {
        let gpus = FakeGpus::plug(dialect, &[Default::default()]);
        let gpu = Arc::new(gpu(&gpus));
        let wants: Vec<Want> = tensors.iter().map(|t| Want::whole(&t.name)).collect();
        let found = on_gpu(&archive, &wants, &gpu, true);
        for (bytes, tensor) in held(&gpus, &found).iter().zip(&tensors) {
            assert!(*bytes == tensor.bytes, "{}", tensor.name);
        }
        assert_eq!(
            (found.checked, found.unchecked),
            (archive.bytes(), Bytes(0))
        );
        assert_eq!(found.tensors[1].bytes.place(), Place::Gpu(0));
        let receipt = found.receipt.as_ref().expect("bytes moved");
        assert_eq!(receipt.to, Place::Gpu(0));
        let shares = receipt.shares.iter().map(|share| share.path);
        assert!(
            shares
                .into_iter()
                .all(|path| [Way::Staged, Way::Cached].contains(&path))
        );
        drop((found, gpu));
        assert_eq!(gpus.alive(), 0, "{dialect}");
    }
    assert_holds(&archive, &tensors);
}

#[test]
fn given_a_gpu_and_a_flipped_bit_no_tensor_is_given_out_and_the_damaged_one_is_named() {
    use std::os::unix::fs::FileExt;
    let large = owned("large", Dtype::F32, &[1 << 20], 5);
    let folder = folder();
    let mut saver = Saver::new(folder.path(), alone(), SaverSettings::default()).expect("a budget");
    saver
        .save(1, &state(std::slice::from_ref(&large)))
        .expect("saved");
    let archive = Archive::open(folder.path()).expect("opens");
    let path = archive.files()[0].path.clone();
    let (stamp, options) = (
        std::fs::metadata(&path).expect("there"),
        std::fs::OpenOptions::new(),
    );
    let file = options
        .clone()
        .read(true)
        .write(true)
        .open(&path)
        .expect("opens");
    let mut byte = [0];
    file.read_exact_at(&mut byte, 3 << 20).expect("read");
    file.write_all_at(&[byte[0] ^ 1], 3 << 20).expect("written");
    let times = std::fs::FileTimes::new().set_modified(stamp.modified().expect("a time"));
    file.set_times(times).expect("set back");
    drop(file);
    let gpus = FakeGpus::cuda(1);
    let options = RestoreOptions {
        to: To::Gpu(Arc::new(gpu(&gpus))),
        ..RestoreOptions::default()
    };
    let reading = archive.restore(&Engine::default(), &archive.everything(), options);
    let error = reading.expect("starts").wait().expect_err("damaged");
    assert_eq!(error.code(), "data-differs");
    assert!(error.to_string().contains("\"large\""), "{error}");
}

#[test]
fn given_a_storage_library_the_bytes_come_straight_and_are_checked_by_reading_them_back() {
    let large = owned("large", Dtype::U8, &[6 << 20], 5);
    let folder = folder();
    let mut saver = Saver::new(folder.path(), alone(), SaverSettings::default()).expect("a budget");
    saver
        .save(1, &state(std::slice::from_ref(&large)))
        .expect("saved");
    let archive = Archive::open(folder.path()).expect("opens");
    let gpus = FakeGpus::cuda(1);
    let storage = FakeStorage::install(&gpus, Dialect::Cuda, Behaviour::default());
    let driver = Driver::open(&storage.functions(), Compat::Refused).expect("open");
    let gpu = Arc::new(gpu(&gpus).with_storage(driver));
    for check in [true, false] {
        let found = on_gpu(&archive, &archive.everything(), &gpu, check);
        assert!(held(&gpus, &found)[0] == large.bytes);
        let receipt = found.receipt.as_ref().expect("bytes moved");
        assert!(receipt.shares.iter().all(|share| share.path == Way::CuFile));
        let all = archive.bytes();
        let expected = if check {
            (all, Bytes(0))
        } else {
            (Bytes(0), all)
        };
        assert_eq!((found.checked, found.unchecked), expected);
    }
}

#[test]
fn given_pytorchs_own_format_and_a_column_in_very_many_runs_a_gpu_gets_what_host_memory_gets() {
    let gpus = FakeGpus::cuda(1);
    let gpu = Arc::new(gpu(&gpus));
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/dcp");
    let folder = folder();
    let tall = owned("tall", Dtype::U8, &[9000, 4], 9);
    let mut saver = Saver::new(folder.path(), alone(), SaverSettings::default()).expect("a budget");
    saver
        .save(1, &state(std::slice::from_ref(&tall)))
        .expect("saved");
    for (path, staged) in [
        (fixtures.join("plain"), true),
        (fixtures.join("sharded"), false),
        (folder.path().to_owned(), true),
    ] {
        let archive = Archive::open(&path).expect("opens");
        let mut wants = archive.everything();
        if archive.get("tall").is_some() {
            wants = vec![archive.chunk("tall", 1, 1, 4).expect("a column")];
        }
        let expected: Vec<Vec<u8>> = restore(&archive, &wants)
            .iter()
            .map(|tensor| tensor.bytes.as_slice().expect("plain").to_vec())
            .collect();
        let found = on_gpu(&archive, &wants, &gpu, true);
        assert_eq!(held(&gpus, &found), expected, "{}", path.display());
        let receipt = found.receipt.expect("bytes moved");
        let by_engine: Bytes = receipt.shares.iter().map(|share| share.bytes).sum();
        assert_eq!(receipt.bounced > by_engine, staged, "{}", path.display());
    }
}
