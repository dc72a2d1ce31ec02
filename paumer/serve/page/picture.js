/**
 * A picture made ready to send: upright, in a format the service reads, and not too large.
 *
 * @typedef {{name: string, bytes: Blob, bitmap: ImageBitmap, width: number, height: number,
 *   note: string}} Picture
 */

/** Pictures longer than this are scaled down before they are sent. */
export const LONGEST = 1024;

const SENT_AS_THEY_ARE = ["image/png", "image/jpeg", "image/webp"];

/**
 * @param {Blob} file
 * @param {string} name
 * @returns {Promise<Picture>}
 */
export async function prepare(file, name) {
  let bitmap;
  try {
    // Turned as the camera's notes say, which the scaled copy no longer carries.
    bitmap = await createImageBitmap(file, { imageOrientation: "from-image" });
  } catch {
    throw new Error(`"${name}" is not an image that this browser can read. Choose a PNG, JPEG or WebP file.`);
  }
  const { width, height } = bitmap;
  const shrink = Math.min(1, LONGEST / Math.max(width, height));
  if (shrink === 1 && SENT_AS_THEY_ARE.includes(file.type)) {
    return { name, bytes: file, bitmap, width, height, note: `${width} × ${height}` };
  }
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(width * shrink));
  canvas.height = Math.max(1, Math.round(height * shrink));
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  pen.imageSmoothingQuality = "high";
  pen.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  const bytes = await new Promise((resolve) =>
    canvas.toBlob(resolve, shrink < 1 ? "image/jpeg" : "image/png", 0.92),
  );
  const size = `${canvas.width} × ${canvas.height}`;
  return {
    name,
    bytes,
    bitmap: await createImageBitmap(canvas),
    width: canvas.width,
    height: canvas.height,
    note: shrink < 1 ? `${size}, scaled down from ${width} × ${height} before sending` : size,
  };
}
