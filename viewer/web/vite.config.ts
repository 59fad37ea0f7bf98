// Builds ../assets/page.html: markup, style and script in one file, with a policy that allows just these and no request.

import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { defineConfig, type Plugin } from "vite";

const HERE = import.meta.dirname;
const TARGET = join(HERE, "../assets/page.html");
const ROOT_FILES = ["index.html", "package-lock.json", "package.json", "tsconfig.json", "vite.config.ts"];

// The same sum as in tests/viewer/test_template.py, which compares it with the one in the built page.
function hashSources(): string {
  const inSrc = readdirSync(join(HERE, "src"), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name).slice(HERE.length + 1).replaceAll("\\", "/"));
  const sum = createHash("sha256");
  for (const name of [...ROOT_FILES, ...inSrc].sort()) {
    sum.update(`${name}\0`).update(readFileSync(join(HERE, name))).update("\0");
  }
  return sum.digest("hex");
}

const source = (text: string) => `'sha256-${createHash("sha256").update(text).digest("base64")}'`;

function onePage(): Plugin {
  return {
    name: "one-page",
    enforce: "post",
    generateBundle(_, bundle) {
      let script = "", style = "";
      for (const part of Object.values(bundle)) {
        if (part.type === "chunk") script += part.code;
        else if (part.fileName.endsWith(".css")) style += String(part.source);
      }
      script = script.trim().replaceAll("</script", "<\\/script").replaceAll("<!--", "<\\!--");
      style = style.trim();
      const policy = `default-src 'none'; script-src ${source(script)}; style-src ${source(style)}; img-src data:; `
        + "base-uri 'none'; form-action 'none'";
      const marks: Record<string, string> = { POLICY: policy, SOURCES: hashSources(), STYLE: style, SCRIPT: script };
      const page = readFileSync(join(HERE, "index.html"), "utf-8").replace(
        /@([A-Z]+)@/g,
        (_all, name: string) => marks[name]!,
      );
      writeFileSync(TARGET, page);
      for (const name of Object.keys(bundle)) delete bundle[name];
    },
  };
}

export default defineConfig({
  root: HERE,
  plugins: [onePage()],
  build: {
    target: "es2022",
    outDir: "node_modules/.build",
    write: true,
    cssCodeSplit: false,
    modulePreload: false,
    rollupOptions: { input: join(HERE, "src/main.ts"), output: { format: "iife", inlineDynamicImports: true } },
  },
});
