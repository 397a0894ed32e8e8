package io.memwal.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Collections;
import java.util.Iterator;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.procedures.BoundProcedure;
import org.apache.spark.sql.connector.catalog.procedures.ProcedureParameter;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;

/** `CALL lake.compact('orders')`: the maintenance of a table, run by Python on the driver. */
final class Procedures {
  private static final String[] NAMES = {"checkpoint", "checkpoint_drop", "compact", "flush", "gc", "maintain", "verify"};

  private Procedures() {}

  static Identifier[] all(String[] namespace) {
    Identifier[] found = new Identifier[NAMES.length];
    for (int i = 0; i < found.length; i++) {
      found[i] = Identifier.of(namespace, NAMES[i]);
    }
    return found;
  }

  static UnboundProcedure of(MemWalCatalog catalog, String name) {
    for (int i = 0; i < NAMES.length; i++) {
      if (NAMES[i].equalsIgnoreCase(name)) {
        return new Maintenance(catalog, NAMES[i]);
      }
    }
    throw new IllegalArgumentException("there is no procedure " + name + "; there are: " + String.join(", ", NAMES));
  }

  private static final class Maintenance implements UnboundProcedure, BoundProcedure {
    private final MemWalCatalog catalog;
    private final String name;

    Maintenance(MemWalCatalog catalog, String name) {
      this.catalog = catalog;
      this.name = name;
    }

    public String name() {
      return name;
    }

    public String description() {
      return name + " of a table";
    }

    public BoundProcedure bind(StructType inputs) {
      return this;
    }

    public boolean isDeterministic() {
      return false;
    }

    /** The table; for those that keep a moment or forget it, its name, too. */
    public ProcedureParameter[] parameters() {
      ProcedureParameter table = ProcedureParameter.in("table", DataTypes.StringType).build();
      if (!name.startsWith("checkpoint")) {
        return new ProcedureParameter[] {table};
      }
      return new ProcedureParameter[] {table, ProcedureParameter.in("name", DataTypes.StringType).build()};
    }

    public Iterator<Scan> call(InternalRow inputs) {
      String[] parts = inputs.getUTF8String(0).toString().split("\\.");
      String[] namespace = new String[parts.length - 1];
      System.arraycopy(parts, 0, namespace, 0, namespace.length);
      ObjectNode arguments = catalog.place(Identifier.of(namespace, parts[parts.length - 1]));
      ObjectNode given = Python.object();
      ProcedureParameter[] parameters = parameters();
      for (int i = 1; i < parameters.length; i++) {
        given.put(parameters[i].name(), inputs.isNullAt(i) ? null : inputs.getUTF8String(i).toString());
      }
      arguments.set("given", given);
      JsonNode answer = Python.ask("call", arguments.put("procedure", name));
      return Collections.<Scan>singletonList(new Rows(name, answer)).iterator();
    }
  }
}
