//! Values into text for people. Pure: a renderer takes a value and a width and returns a string.

pub mod bench_collective;
pub mod bench_collective_picture;
pub mod bench_net;
pub mod bench_picture;
pub mod block;
pub mod capture;
pub mod cell;
pub mod ckpt;
pub mod command;
pub mod cp;
pub mod diagnosis;
pub mod failure;
pub mod hop;
pub mod legs;
pub mod listing;
pub mod load;
pub mod map;
pub mod map_boxes;
pub mod map_matrix;
pub mod map_svg;
pub mod map_tree;
pub mod obstacle;
pub mod plan;
pub mod plot;
pub mod progress;
pub mod race;
pub mod race_picture;
pub mod receipt;
pub mod report;
pub mod route;
pub mod serve;
pub mod step;
pub mod style;
pub mod svg;
pub mod table;
pub mod text;

/// What is left of a rendered text where no colour is wanted.
#[cfg(test)]
pub fn plain(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}
