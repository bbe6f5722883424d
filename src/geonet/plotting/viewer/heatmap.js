// A 2D density as a heat map: levels to colours, cells to a canvas of any size.

export function drawHeatmap(context, levels, [rows, columns], colours) {
  const { width, height } = context.canvas;
  context.imageSmoothingEnabled = true;
  context.imageSmoothingQuality = "high";
  context.drawImage(renderCells(levels, rows, columns, colours), 0, 0, width, height);
}

function renderCells(levels, rows, columns, colours) {
  const small = document.createElement("canvas");
  [small.width, small.height] = [columns, rows];
  const image = new ImageData(columns, rows);
  for (let i = 0; i < levels.length; i += 1) {
    const k = 3 * Math.min(255, Math.max(0, Math.round(levels[i])));
    image.data[4 * i] = colours[k];
    image.data[4 * i + 1] = colours[k + 1];
    image.data[4 * i + 2] = colours[k + 2];
    image.data[4 * i + 3] = 255;
  }
  small.getContext("2d").putImageData(image, 0, 0);
  return small;
}
