package ipucore

import (
	"encoding/json"
	"os"
	"reflect"
	"testing"
)

// TestVectors runs the vectors on the module that IPU_CORE_WASM names.
func TestVectors(t *testing.T) {
	path := os.Getenv("IPU_CORE_WASM")
	if path == "" {
		t.Skip("IPU_CORE_WASM does not name the module")
	}
	core, err := Load(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	var vectors []struct {
		Name            string
		Request, Answer Object
	}
	text, err := os.ReadFile("../vectors.json")
	if err == nil {
		err = json.Unmarshal(text, &vectors)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, vector := range vectors {
		found := Object{}
		var ok any
		if err := core.Call(t.Context(), vector.Request, &ok); err == nil {
			found["ok"] = ok
		} else {
			found["error"] = err.Error()
		}
		if !reflect.DeepEqual(found, vector.Answer) {
			t.Errorf("%s: %v", vector.Name, found)
		}
	}
	placed, err := core.Place(t.Context(), Object{"topology": "pod16"}, Object{"size": 8}, "best-fit")
	if block, _ := placed["fits"].(Object); err != nil || block["size"] != 8.0 {
		t.Errorf("%v %v", placed, err)
	}
	t.Logf("%d vectors", len(vectors))
}
