// Texts whose contrast with what is behind them is below AA (4.5, or 3 for large ones).
() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const paint = (color) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; };
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (e) => { for (let at = e; at; at = at.parentElement) { const c = paint(getComputedStyle(at).backgroundColor); if (c[3] === 255) return c; } return [255, 255, 255, 255]; };
  const found = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement, style = getComputedStyle(e);
    if (!walker.currentNode.textContent.trim() || !e.checkVisibility() || e.closest(".unseen, .skip, noscript, option, :disabled, svg")) continue;
    const [a, b] = [light(paint(style.color)), light(behind(e))].sort((x, y) => y - x);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && Number(style.fontWeight) >= 700);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < (large ? 3 : 4.5)) found.add(`${ratio.toFixed(2)}: ${e.className || e.tagName} ${walker.currentNode.textContent.trim().slice(0, 30)}`);
  }
  return [...found];
}
