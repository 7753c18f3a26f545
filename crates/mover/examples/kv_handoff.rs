//! Handing a KV cache from a prefill process to a decode process, layer by layer.
//!
//! A cache has 61 layers. Each is a pool of fixed-size blocks, of which one request owns some that
//! lie anywhere. The prefill side writes a layer's blocks as soon as that layer is computed, to
//! other places in the decode side's pool, and a value tells the decode side that the layer is
//! there; it starts on the layer while the next ones are still on their way. Every receipt is
//! checked: bytes by path must sum to the bytes of the layer, and the path must be the one expected.
//!
//! ```text
//! cargo run --release -p crowfly-mover --example kv_handoff          # both paths
//! cargo run --release -p crowfly-mover --example kv_handoff -- tcp   # one of them
//! ```
//!
//! The two sides are two processes: this program starts itself again as the decode side.

use std::error::Error;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crowfly_mover::fabric::rendezvous::{Folder, announce, meet};
use crowfly_mover::fabric::{
    Access, Buffer, Fabric, Imm, Options, Page, RegionDescriptor, Settings, SharedKey, Transfer,
};
use crowfly_route::hop::Class;
use crowfly_route::receipt::Path;
use crowfly_route::units::Bytes;

const LAYERS: u32 = 61;
/// Bytes of one block: 64 tokens of 576 latent values of 2 bytes.
const BLOCK: usize = 64 * 576 * 2;
/// Blocks in each layer's pool, on both sides.
const POOL: usize = 32;
/// Blocks that the request owns.
const OWNED: usize = 20;
const TIME: Duration = Duration::from_secs(60);

/// Where the request's blocks lie: on the prefill side, and on the decode side.
fn block_tables() -> ([usize; OWNED], [usize; OWNED]) {
    (
        std::array::from_fn(|block| (block * 7 + 3) % POOL),
        std::array::from_fn(|block| (block * 11 + 5) % POOL),
    )
}

/// What a block holds: a value of its own in every word.
fn word(layer: u32, block: usize, at: usize) -> u32 {
    layer
        .wrapping_mul(0x9e37_79b1)
        .wrapping_add((block as u32).wrapping_mul(0x85eb_ca6b))
        .wrapping_add(at as u32)
}

fn settings(shm: bool) -> Settings {
    let key = std::env::var("CROWFLY_KV_KEY").unwrap_or_default();
    Settings {
        shm,
        ..Settings::new(SharedKey::derive(&key))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["decode", folder, path] => decode(&Folder::at(folder), path == "shm"),
        [] => ["shm", "tcp"].into_iter().try_for_each(hand_over),
        [path @ ("shm" | "tcp")] => hand_over(path),
        _ => Err("say shm, tcp or nothing".into()),
    }
}

/// The prefill side.
fn hand_over(path: &str) -> Result<(), Box<dyn Error>> {
    let key = SharedKey::generate()?.to_hex();
    let folder = std::env::temp_dir().join(format!("crowfly-kv-{}", &key[..12]));
    let mut child = Command::new(std::env::current_exe()?)
        .args(["decode", &folder.display().to_string(), path])
        .env("CROWFLY_KV_KEY", &key)
        .stdin(Stdio::null())
        .spawn()?;
    let mut settings = settings(path == "shm");
    settings.key = SharedKey::derive(&key);
    let result = prefill(&Folder::at(&folder), settings, path);
    if result.is_err() {
        child.kill()?;
    }
    let status = child.wait()?;
    std::fs::remove_dir_all(&folder)?;
    result?;
    if status.success() {
        return Ok(());
    }
    Err(format!("the decode side ended with {status}").into())
}

fn prefill(folder: &Folder, settings: Settings, path: &str) -> Result<(), Box<dyn Error>> {
    let expected = match path {
        "shm" => (Path::Shm, Class::Direct),
        _ => (Path::Tcp, Class::Socket),
    };
    let fabric = Fabric::new(settings)?;
    let peer = meet(&fabric, folder, "decode", TIME)?;
    let options = Options::within(TIME);
    let remote = RegionDescriptor::from_bytes(&peer.recv(options).wait()?)?;

    let (from, to) = block_tables();
    let mut pool = Buffer::zeroed(LAYERS as usize * POOL * BLOCK, None)?;
    compute(&mut pool, &from);
    let cache = fabric.register(pool, Access::LOCAL)?;
    let pages: Vec<Page> = from
        .iter()
        .zip(to)
        .map(|(from, to)| Page {
            local: (from * BLOCK) as u64,
            remote: (to * BLOCK) as u64,
        })
        .collect();

    let began = Instant::now();
    let mut running: Vec<Transfer> = Vec::new();
    for layer in 0..LAYERS {
        let start = layer as usize * POOL * BLOCK;
        let here = cache.slice(start..start + POOL * BLOCK)?;
        let there = remote.slice(start as u64..(start + POOL * BLOCK) as u64)?;
        let value = Some(Imm(layer));
        running.push(peer.write_paged(&here, &there, BLOCK as u64, &pages, value, options));
    }
    let layer_bytes = Bytes((OWNED * BLOCK) as u64);
    let mut cpu = 0.0;
    for transfer in running {
        let receipt = transfer.wait()?.into_receipt();
        let share = receipt.shares.first().ok_or("a receipt without bytes")?;
        assert!(receipt.is_whole(), "{receipt:?}");
        assert_eq!(receipt.requested, layer_bytes);
        assert_eq!((share.path, share.class), expected, "a detour");
        cpu += receipt.cpu.total();
    }
    let took = began.elapsed().as_secs_f64();
    let total = Bytes(layer_bytes.0 * u64::from(LAYERS));
    println!(
        "{path}: {LAYERS} layers, {total} in {:.1} ms ({:.2} GB/s, {cpu:.3} CPU s here), every receipt `{path}`",
        took * 1e3,
        total.0 as f64 / took / 1e9,
    );
    // The decode side says when it has checked everything.
    let verdict = peer.recv(options).wait()?;
    if verdict == b"all layers are right" {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&verdict).into())
}

/// Fills the request's blocks, as computing the layers would.
fn compute(pool: &mut Buffer, blocks: &[usize]) {
    let Some(bytes) = pool.as_mut_slice() else {
        return;
    };
    for (layer, pool) in (0..LAYERS).zip(bytes.chunks_exact_mut(POOL * BLOCK)) {
        for (block, place) in blocks.iter().enumerate() {
            let bytes = &mut pool[place * BLOCK..(place + 1) * BLOCK];
            for (at, slot) in bytes.chunks_exact_mut(4).enumerate() {
                slot.copy_from_slice(&word(layer, block, at).to_le_bytes());
            }
        }
    }
}

/// The decode side.
fn decode(folder: &Folder, shm: bool) -> Result<(), Box<dyn Error>> {
    let fabric = Fabric::new(settings(shm))?;
    let pool = Buffer::zeroed(LAYERS as usize * POOL * BLOCK, None)?;
    let cache = fabric.register(pool, Access::WRITE)?;
    announce(&fabric, folder, "decode")?;
    let peer = fabric.accept(TIME)?;
    let options = Options::within(TIME);
    peer.send(&cache.descriptor().to_bytes()?, options).wait()?;

    let (_, places) = block_tables();
    let mut bytes = vec![0; BLOCK];
    for layer in 0..LAYERS {
        // The layers may arrive in any order; this one is needed now.
        fabric.counter(Imm(layer)).wait(1, TIME)?;
        for (block, place) in places.iter().enumerate() {
            cache.read_at((layer as usize * POOL + place) * BLOCK, &mut bytes);
            for (at, found) in bytes.chunks_exact(4).enumerate() {
                if found != word(layer, block, at).to_le_bytes() {
                    let verdict = format!("layer {layer}, block {block}, word {at} is wrong");
                    peer.send(verdict.as_bytes(), options).wait()?;
                    return Err(verdict.into());
                }
            }
        }
    }
    peer.send(b"all layers are right", options).wait()?;
    Ok(())
}
